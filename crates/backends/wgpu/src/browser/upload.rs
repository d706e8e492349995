//! Copies from host memory to the device: the queue copies the bytes during the call, and commands put
//! bytes that are not whole words of a buffer in their place.

use transload_hal::Rows;
use transload_hal::{Buffer, HostSpan};

use super::gpu::Gpu;
use crate::raw::{CHUNK, End, Program};
use crate::storage::WORD;

/// Rows of at least this many bytes are written one by one. For shorter rows, a call to the browser takes
/// longer than packing rows together: a guess.
const LONG_ROW: u64 = 16 << 10;

/// Writes rows of `host`, where `of.from` counts from the start of that view, to the device.
///
/// # Safety
/// The rows lie within the view. The host can reach the view's bytes, and nothing writes them during the
/// call.
pub(super) unsafe fn write_rows(gpu: &Gpu, host: &Buffer, dst: End<'_>, of: &Rows) {
    if of.rows > 1 && of.len < LONG_ROW {
        // SAFETY: the caller's promise.
        return unsafe { write_together(gpu, host, dst, of) };
    }
    for row in 0..of.rows {
        let Some(span) = host.host(of.from + row * of.from_pitch, of.len) else {
            continue;
        };
        // SAFETY: the caller's promise.
        let bytes = unsafe { bytes_of(span) };
        write_run(gpu, bytes, dst.after(of.to + row * of.to_pitch));
    }
}

/// Packs as many rows together as fit; commands then separate them.
///
/// # Safety
/// As [`write_rows`].
unsafe fn write_together(gpu: &Gpu, host: &Buffer, dst: End<'_>, of: &Rows) {
    let most = CHUNK / of.len;
    let mut packed = Vec::new();
    let mut first = 0;
    while first < of.rows {
        let rows = most.min(of.rows - first);
        packed.clear();
        for row in first..first + rows {
            if let Some(span) = host.host(of.from + row * of.from_pitch, of.len) {
                // SAFETY: the caller's promise.
                packed.extend_from_slice(unsafe { bytes_of(span) });
            }
        }
        let part = Rows {
            from: 0,
            from_pitch: of.len,
            to: of.to + first * of.to_pitch,
            rows,
            ..*of
        };
        let inlet = fill_inlet(gpu, &packed);
        place(gpu, |program| {
            program.copy_rows(End::bytes(&inlet, 0), dst, &part);
        });
        first += rows;
    }
}

/// Writes bytes that are contiguous on both sides.
fn write_run(gpu: &Gpu, bytes: &[u8], dst: End<'_>) {
    match dst {
        End::Bytes { buffer, offset } => write_words(gpu, bytes, buffer, offset),
        End::Texels { window, offset } => {
            let block = window.block.bytes;
            let mut at = 0;
            while at < bytes.len() as u64 {
                // Each part but the last ends with a block.
                let end = (offset + at + CHUNK) / block * block - offset;
                let end = end.min(bytes.len() as u64);
                let part = &bytes[at as usize..end as usize];
                let inlet = fill_inlet(gpu, part);
                place(gpu, |program| {
                    program.copy(End::bytes(&inlet, 0), dst.after(at), end - at);
                });
                at = end;
            }
        }
    }
}

/// Writes whole words in place. Merges the bytes left at either end with the other bytes of their words.
fn write_words(gpu: &Gpu, bytes: &[u8], dst: &wgpu::Buffer, to: u64) {
    let cut = Cut::of(to, bytes.len() as u64);
    let (head, body) = (cut.head as usize, cut.body as usize);
    if body > 0 {
        let words = &bytes[head..head + body];
        gpu.queue.write_buffer(dst, to + cut.head, words);
    }
    if cut.head + cut.tail == 0 {
        return;
    }
    let tail = &bytes[head + body..];
    let mut edges = [0; 2 * WORD as usize];
    edges[..head].copy_from_slice(&bytes[..head]);
    edges[WORD as usize..][..tail.len()].copy_from_slice(tail);
    let inlet = fill_inlet(gpu, &edges);
    place(gpu, |program| {
        let end = |at| End::bytes(dst, to + at);
        program.copy(End::bytes(&inlet, 0), end(0), cut.head);
        program.copy(End::bytes(&inlet, WORD), end(cut.head + cut.body), cut.tail);
    });
}

/// Bytes before the first whole word of the destination, in whole words, and behind the last.
#[derive(Clone, Copy)]
struct Cut {
    head: u64,
    body: u64,
    tail: u64,
}

impl Cut {
    fn of(to: u64, len: u64) -> Cut {
        let head = (to.next_multiple_of(WORD) - to).min(len);
        let body = (len - head) / WORD * WORD;
        Cut {
            head,
            body,
            tail: len - head - body,
        }
    }
}

/// Writes at most a chunk to the inlet, after the commands that were submitted before.
fn fill_inlet(gpu: &Gpu, bytes: &[u8]) -> wgpu::Buffer {
    let inlet = gpu.inlet();
    let (words, rest) = bytes.split_at(bytes.len() / WORD as usize * WORD as usize);
    if !words.is_empty() {
        gpu.queue.write_buffer(&inlet, 0, words);
    }
    if !rest.is_empty() {
        let mut word = [0; WORD as usize];
        word[..rest.len()].copy_from_slice(rest);
        gpu.queue.write_buffer(&inlet, words.len() as u64, &word);
    }
    inlet
}

/// Submits commands at once, because the next bytes overwrite the inlet.
fn place(gpu: &Gpu, write: impl FnOnce(&mut Program)) {
    let mut program = Program::new(gpu.shifts);
    write(&mut program);
    run(gpu, &program);
}

/// Submits the commands.
pub(super) fn run(gpu: &Gpu, program: &Program) {
    let shifter = program.needs_scratch().then(|| gpu.shifter());
    let commands = program.encode(&gpu.device, shifter.as_deref());
    gpu.queue.submit([commands]);
}

/// # Safety
/// The span is valid, and nothing writes it, for as long as the slice is used.
unsafe fn bytes_of<'a>(span: HostSpan) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { span.as_slice() }
}
