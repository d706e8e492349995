use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

const TOKEN: Token = [7; 16];

/// A memfd of `len` bytes as the host's backend makes them, with more seals.
fn file(len: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, len).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// Serves one file, by [`TOKEN`].
fn served(file: &OwnedFd) -> Descriptors {
    let file = file.try_clone().unwrap();
    Descriptors::serve(move |token| (*token == TOKEN).then(|| file.try_clone().unwrap())).unwrap()
}

fn refusal(mapped: Result<Mapping, String>) -> String {
    mapped.err().unwrap()
}

/// Lets a client read one connection's answers of a server that does as it likes.
fn fake(answers: impl FnOnce(UnixStream) + Send + 'static) -> (Token, JoinHandle<()>) {
    let mut name = Token::default();
    fill_random(&mut name).unwrap();
    let address = SocketAddr::from_abstract_name(path(&name)).unwrap();
    let socket = UnixListener::bind_addr(&address).unwrap();
    let thread = thread::spawn(move || answers(socket.accept().unwrap().0));
    (name, thread)
}

/// Sends a file as a server does, whatever seals it has.
fn send(stream: &UnixStream, file: &OwnedFd) {
    let mut token = Token::default();
    rustix::net::send(stream, &[READY], SendFlags::NOSIGNAL).unwrap();
    rustix::net::recv(stream, &mut token[..], RecvFlags::empty()).unwrap();
    give(stream.as_fd(), file.as_fd()).unwrap();
}

#[test]
fn both_sides_see_the_bytes_and_the_length_is_sealed() {
    let file = file(10_000, SealFlags::SHRINK | SealFlags::GROW);
    let server = served(&file);
    let (one, two) = (
        Mapping::of(&server.name(), &TOKEN, 10_000, 1).unwrap(),
        Mapping::of(&server.name(), &TOKEN, 10_000, 1 << 16).unwrap(),
    );
    assert_eq!(two.span().as_ptr().align_offset(1 << 16), 0);
    drop(server);
    // SAFETY: both have 10,000 bytes, and only this thread touches them.
    unsafe { one.span().as_ptr().wrapping_add(9_999).write(5) };
    // SAFETY: as above.
    let seen = unsafe { two.span().as_ptr().wrapping_add(9_999).read() };
    assert_eq!(seen, 5);
    assert!(ftruncate(&file, 1).is_err());
    assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err());
}

#[test]
fn a_descriptor_is_given_for_its_token_alone() {
    let server = served(&file(4096, SealFlags::SHRINK | SealFlags::GROW));
    check(&server.name()).unwrap();
    let refused = refusal(Mapping::of(&server.name(), &[8; 16], 4096, 1));
    assert!(refused.contains("no descriptor"), "{refused}");
    // What is no request is dropped, and the next one served.
    let stream = connect(&server.name(), own_user(), STEP).unwrap();
    rustix::net::send(&stream, &[7; 5], SendFlags::NOSIGNAL).unwrap();
    assert!(receive(stream.as_fd()).is_err());
    Mapping::of(&server.name(), &TOKEN, 4096, 1).unwrap();
    let name = server.name();
    drop(server);
    let gone = check(&name).unwrap_err();
    assert!(gone.contains("not in this machine"), "{gone}");
}

#[test]
fn a_process_of_another_user_is_refused_by_both_sides() {
    let file = file(4096, SealFlags::SHRINK | SealFlags::GROW);
    let server = served(&file);
    let other = own_user() ^ 1;
    let refused = connect(&server.name(), other, STEP).unwrap_err();
    assert!(refused.contains("of user"), "{refused}");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let asked = Mutex::new(false);
    let find = |_: &Token| {
        *asked.lock().unwrap() = true;
        None
    };
    rustix::net::send(&theirs, &TOKEN, SendFlags::NOSIGNAL).unwrap();
    let refused = answer(ours.as_fd(), other, find).unwrap_err();
    assert!(refused.to_string().contains("of user"), "{refused}");
    drop(ours);
    let mut byte = [0];
    let received = rustix::net::recv(&theirs, &mut byte[..], RecvFlags::empty());
    // The connection has ended, with the token unread.
    assert!(received.is_err() && !*asked.lock().unwrap());
}

#[test]
fn files_that_could_change_under_a_mapping_are_refused() {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let odd = [
        (4096, SealFlags::empty(), "seals"),
        (4096, SealFlags::SHRINK | SealFlags::GROW, "seals"),
        (4096, SealFlags::SHRINK | SealFlags::SEAL, "seals"),
        (4096, all | SealFlags::WRITE, "seals"),
        (4096, all | SealFlags::FUTURE_WRITE, "seals"),
        (4095, all, "4095 bytes, and not 4096"),
        (8192, all, "8192 bytes, and not 4096"),
    ];
    for (len, seals, reason) in odd {
        let (name, thread) = fake(move |stream| send(&stream, &file(len, seals)));
        let refused = refusal(Mapping::of(&name, &TOKEN, 4096, 1));
        assert!(refused.contains(reason), "{refused}");
        thread.join().unwrap();
    }
    let (name, thread) = fake(move |stream| send(&stream, &file(4096, all)));
    Mapping::of(&name, &TOKEN, 4096, 1).unwrap();
    thread.join().unwrap();
    // No memfd at all.
    let pipe = |stream: UnixStream| send(&stream, &stream.try_clone().unwrap().into());
    let (name, thread) = fake(pipe);
    let refused = refusal(Mapping::of(&name, &TOKEN, 4096, 1));
    assert!(refused.contains("seals"), "{refused}");
    thread.join().unwrap();
}

#[test]
fn a_server_that_answers_nonsense_or_nothing_is_given_up() {
    let (name, thread) = fake(drop);
    let refused = check(&name).unwrap_err();
    assert!(refused.contains("takes no connection"), "{refused}");
    thread.join().unwrap();
    // It holds the connection until the client has gone.
    let (name, thread) = fake(|stream| {
        let _ = rustix::net::recv(&stream, &mut [0][..], RecvFlags::empty());
    });
    let refused = check(&name).unwrap_err();
    assert!(refused.contains("waiting for the server"), "{refused}");
    thread.join().unwrap();
}

#[test]
fn handlers_of_signals_do_not_refuse_memory() {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: for all fields of this structure zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing, and no other test uses the signal.
    let set = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()) };
    // SAFETY: it always succeeds.
    let client = unsafe { libc::pthread_self() };
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let (name, server) = fake(move |stream| {
        for _ in 0..1000 {
            // SAFETY: the client's thread joins this one.
            unsafe { libc::pthread_kill(client, libc::SIGUSR1) };
            thread::yield_now();
        }
        send(&stream, &file(4096, all));
    });
    let mapped = Mapping::of(&name, &TOKEN, 4096, 1);
    server.join().unwrap();
    assert_eq!((set, mapped.err()), (0, None));
}
