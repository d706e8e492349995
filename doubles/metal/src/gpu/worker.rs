//! The thread that is a GPU.

use std::sync::PoisonError;
use std::thread;

use super::{Next, State, WORLD};
use crate::classes::command_buffer::CommandBuffer;
use crate::gpu::callbacks::call_back;
use crate::runtime::Ref;

/// The work that the thread has found.
enum Work {
    Command(Ref<CommandBuffer>),
    End(Ref<CommandBuffer>),
}

/// Starts the thread of `device`. It lives as long as the process.
pub(super) fn start(device: usize) {
    let name = format!("GPU {device}");
    let thread = thread::Builder::new().name(name);
    thread
        .spawn(move || run(device))
        .expect("the system has threads");
}

fn run(device: usize) {
    loop {
        match next(device) {
            Work::Command(buffer) => {
                CommandBuffer::tell_scheduled(&buffer);
                buffer.carry_out();
                // Dropped before other threads may see that no work is in flight.
                drop(buffer);
                WORLD.called();
            }
            Work::End(buffer) => {
                CommandBuffer::tell_scheduled(&buffer);
                call_back(move || CommandBuffer::complete(&buffer));
                WORLD.called();
            }
        }
    }
}

/// Waits for work of `device`. It counts as busy from here on.
fn next(device: usize) -> Work {
    let mut state = WORLD.state();
    loop {
        if let Some(work) = find(&mut state, device) {
            state.busy += 1;
            return work;
        }
        state = WORLD
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

fn find(state: &mut State, device: usize) -> Option<Work> {
    let count = state.lines.len();
    for step in 0..count {
        let index = (state.turn + step) % count;
        let line = &state.lines[index];
        let Some(buffer) = line.buffers.front().filter(|_| line.device == device) else {
            continue;
        };
        if !state.may_go_on(buffer) {
            continue;
        }
        let buffer = buffer.clone();
        let next = buffer.next();
        // The next command comes from another queue, if there is one.
        state.turn = index + 1;
        buffer.schedule();
        if next == Next::Command {
            state.permits = state.permits.saturating_sub(1);
            buffer.begin_command();
            return Some(Work::Command(buffer));
        }
        state.lines[index].buffers.pop_front();
        if state.lines[index].buffers.is_empty() {
            state.lines.remove(index);
        }
        return Some(Work::End(buffer));
    }
    None
}
