//! One side of a TLS connection over two buffers, without a socket.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};

use super::pins::Pins;
use super::{ChannelError, failed, rustls_other};
use crate::buffer::Buffer;
use crate::key::PublicKey;

/// A TLS connection that reads records from one buffer and writes records to another.
///
/// Between two calls rustls holds no part of a handshake message once the channel is open; [`Channel::receive`] sees to
/// it. That is why [`Channel::seal`] may show rustls an empty input, which it must while records wait that are not to be
/// opened yet.
pub(crate) struct Channel {
    side: Side,
    pins: Arc<Pins>,
    /// The peer has said that it sends nothing more.
    is_ended: bool,
}

/// What [`Channel::receive`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// The plaintext of one record was passed on.
    Record,
    /// The input has no whole record.
    Nothing,
}

pub(super) enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl From<UnbufferedClientConnection> for Side {
    fn from(connection: UnbufferedClientConnection) -> Side {
        Side::Client(connection)
    }
}

impl From<UnbufferedServerConnection> for Side {
    fn from(connection: UnbufferedServerConnection) -> Side {
        Side::Server(connection)
    }
}

impl Channel {
    pub(super) fn new(side: Side, pins: Arc<Pins>) -> Channel {
        Channel {
            side,
            pins,
            is_ended: false,
        }
    }

    pub(crate) fn is_client(&self) -> bool {
        matches!(self.side, Side::Client(_))
    }

    /// Returns whether both sides have shown their keys and may send. The server has not yet accepted the client's key
    /// when the client's side is open.
    pub(crate) fn is_open(&self) -> bool {
        !match &self.side {
            Side::Client(connection) => connection.is_handshaking(),
            Side::Server(connection) => connection.is_handshaking(),
        }
    }

    /// Returns whether the peer has closed its direction, after which a cut of the connection loses nothing.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns the key of the peer, once the channel is open.
    pub(crate) fn peer(&self) -> Option<PublicKey> {
        self.pins.shown().filter(|_| self.is_open())
    }

    /// Takes records from the input until one has plaintext, which it passes to `accept`, or none is whole. Answers of the
    /// handshake go to the output, which needs [`Channel::RESERVE`] bytes of space.
    pub(crate) fn receive<E: From<ChannelError>>(
        &mut self,
        input: &mut Buffer,
        output: &mut Buffer,
        mut accept: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Received, E> {
        loop {
            let mut accepted = Ok(());
            let (discard, step) = self.step(input.filled_mut(), output, |plain| {
                accepted = accept(plain);
            });
            input.take(discard);
            accepted?;
            match step {
                Ok(Step::Opened) => return Ok(Received::Record),
                Ok(Step::Again) => {}
                Ok(Step::Ended) => self.is_ended = true,
                Ok(Step::Waits) => {
                    // rustls keeps the place of a handshake message that goes on in another record, and would look for it
                    // in the empty input of `seal`. No peer of this crate splits one.
                    let is_split = self.is_open() && has_whole_record(input.filled());
                    return match is_split {
                        true => Err(ChannelError::Tls(Arc::new(Split)).into()),
                        false => Ok(Received::Nothing),
                    };
                }
                Err(error) => {
                    // The alert that tells the peer, if there is one, is the next thing to be written.
                    let (discard, _) = self.step(input.filled_mut(), output, |_| ());
                    input.take(discard);
                    let rejection = self.pins.rejection(&error, self.is_client());
                    let error = rejection.map_or_else(|| failed(error), ChannelError::WrongKey);
                    return Err(error.into());
                }
            }
        }
    }

    /// Encrypts bytes into records at the end of the output, which has space for [`sealed_len`] and
    /// [`Channel::RESERVE`].
    pub(crate) fn seal(&mut self, plain: &[u8], output: &mut Buffer) -> Result<(), ChannelError> {
        self.write(output, Some(plain))
    }

    /// Tells the peer that nothing more comes. The output needs [`Channel::RESERVE`] bytes of space.
    pub(crate) fn close(&mut self, output: &mut Buffer) -> Result<(), ChannelError> {
        self.write(output, None)
    }

    /// Writes the bytes, or the end if there are none.
    fn write(&mut self, output: &mut Buffer, plain: Option<&[u8]>) -> Result<(), ChannelError> {
        loop {
            let step = match &mut self.side {
                Side::Client(side) => write(side.process_tls_records(&mut []), output, plain),
                Side::Server(side) => write(side.process_tls_records(&mut []), output, plain),
            };
            match step.map_err(failed)? {
                Step::Again => {}
                Step::Ended => self.is_ended = true,
                Step::Opened | Step::Waits => return Ok(()),
            }
        }
    }

    fn step(
        &mut self,
        input: &mut [u8],
        output: &mut Buffer,
        accept: impl FnMut(&[u8]),
    ) -> (usize, Result<Step, rustls::Error>) {
        match &mut self.side {
            Side::Client(side) => step(side.process_tls_records(input), output, accept),
            Side::Server(side) => step(side.process_tls_records(input), output, accept),
        }
    }

    /// The most bytes that TLS writes of itself at once: a flight of the handshake, which has less than 1 KiB with raw
    /// public keys, an alert, or an update of keys.
    pub(crate) const RESERVE: usize = 4 << 10;
}

/// Returns how many bytes `len` bytes have in records.
pub(crate) const fn sealed_len(len: usize) -> usize {
    len + len.div_ceil(RECORD) * RECORD_OVERHEAD
}

/// What rustls wants next.
enum Step {
    /// A record's plaintext was passed on.
    Opened,
    /// Another call.
    Again,
    /// Further bytes of the peer.
    Waits,
    /// The peer has closed its direction; another call.
    Ended,
}

fn step<D>(
    status: UnbufferedStatus<'_, '_, D>,
    output: &mut Buffer,
    mut accept: impl FnMut(&[u8]),
) -> (usize, Result<Step, rustls::Error>) {
    let mut discard = status.discard;
    let state = match status.state {
        Ok(state) => state,
        Err(error) => return (discard, Err(error)),
    };
    let step = match state {
        ConnectionState::ReadTraffic(mut traffic) => match traffic.next_record() {
            Some(Ok(record)) => {
                discard += record.discard;
                accept(record.payload);
                Ok(Step::Opened)
            }
            Some(Err(error)) => Err(error),
            None => Ok(Step::Again),
        },
        state => advance(state, output),
    };
    (discard, step)
}

/// Handles the states in which there is no plaintext to read or to write.
fn advance<D>(
    state: ConnectionState<'_, '_, D>,
    output: &mut Buffer,
) -> Result<Step, rustls::Error> {
    match state {
        ConnectionState::EncodeTlsData(mut data) => {
            let len = data.encode(output.space());
            output.fill(len.map_err(rustls_other)?);
            Ok(Step::Again)
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::Again)
        }
        ConnectionState::PeerClosed => Ok(Step::Ended),
        // There is no early data, and `Closed` needs nothing more.
        _ => Ok(Step::Waits),
    }
}

fn write<D>(
    status: UnbufferedStatus<'_, '_, D>,
    output: &mut Buffer,
    plain: Option<&[u8]>,
) -> Result<Step, rustls::Error> {
    match status.state? {
        ConnectionState::WriteTraffic(mut traffic) => {
            let written = match plain {
                Some(plain) => traffic.encrypt(plain, output.space()),
                None => traffic.queue_close_notify(output.space()),
            };
            output.fill(written.map_err(rustls_other)?);
            Ok(Step::Waits)
        }
        state @ (ConnectionState::EncodeTlsData(_)
        | ConnectionState::TransmitTlsData(_)
        | ConnectionState::PeerClosed) => advance(state, output),
        _ => Err(rustls::Error::HandshakeNotComplete),
    }
}

/// A message of TLS goes on in another record.
#[derive(Debug, thiserror::Error)]
#[error("the peer splits a message of TLS over several records")]
struct Split;

/// Whether bytes start with a whole record: a type, a version, a length and as many bytes (RFC 8446, section 5.1).
fn has_whole_record(bytes: &[u8]) -> bool {
    match bytes {
        [_, _, _, high, low, body @ ..] => {
            body.len() >= usize::from(u16::from_be_bytes([*high, *low]))
        }
        _ => false,
    }
}

/// The most plaintext in a record (RFC 8446, section 5.1).
pub(crate) const RECORD: usize = 16 << 10;

/// What encryption adds to a record: a header of 5 bytes, the inner type of 1 and the tag of 16.
const RECORD_OVERHEAD: usize = 22;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PrivateKey;

    /// One side with its buffers.
    struct End {
        channel: Channel,
        input: Buffer,
        output: Buffer,
    }

    impl End {
        fn new(channel: Channel) -> End {
            let [input, output] = [(); 2].map(|()| Buffer::new(64 << 10));
            End {
                channel,
                input,
                output,
            }
        }

        /// Takes what the other side has written, and returns the plaintext.
        fn take(&mut self, other: &mut End) -> Vec<u8> {
            let len = other.output.filled().len();
            self.input.space()[..len].copy_from_slice(other.output.filled());
            self.input.fill(len);
            other.output.take(len);
            let mut all = Vec::new();
            let mut accept = |plain: &[u8]| {
                all.extend_from_slice(plain);
                Ok::<(), ChannelError>(())
            };
            let (input, output) = (&mut self.input, &mut self.output);
            while self.channel.receive(input, output, &mut accept).unwrap() == Received::Record {}
            all
        }

        fn seal(&mut self, plain: &[u8]) {
            self.channel.seal(plain, &mut self.output).unwrap();
        }
    }

    fn pair() -> [End; 2] {
        let [client, node] = [(); 2].map(|()| PrivateKey::generate().unwrap());
        let mut here = End::new(Channel::client(&client, node.public()).unwrap());
        let mut there = End::new(Channel::server(&node, &[client.public()]).unwrap());
        for _ in 0..3 {
            there.take(&mut here);
            here.take(&mut there);
        }
        assert!(here.channel.is_open() && there.channel.is_open());
        [here, there]
    }

    #[test]
    fn keys_are_updated_while_records_wait_on_both_sides() {
        let [mut here, mut there] = pair();
        for round in 0..4 {
            if let Side::Client(side) = &mut here.channel.side {
                let state = side.process_tls_records(&mut []).state.unwrap();
                let ConnectionState::WriteTraffic(traffic) = state else {
                    panic!("{state:?}");
                };
                traffic.refresh_traffic_keys().unwrap();
            }
            here.seal(&[round; 100]);
            // Written before the update has been read, and after.
            there.seal(&[round; 50]);
            assert_eq!(there.take(&mut here), [round; 100]);
            there.seal(&[round; 50]);
            assert_eq!(here.take(&mut there), [round; 100]);
        }
    }

    #[test]
    fn records_have_the_length_that_is_reserved_for_them() {
        let [mut here, mut there] = pair();
        for len in [1, RECORD - 1, RECORD, RECORD + 1, 3 * RECORD] {
            here.seal(&vec![7; len]);
            assert_eq!(here.output.filled().len(), sealed_len(len));
            assert_eq!(there.take(&mut here).len(), len);
        }
    }

    #[test]
    fn the_end_is_told() {
        let [mut here, mut there] = pair();
        here.seal(b"last");
        here.channel.close(&mut here.output).unwrap();
        assert!(!there.channel.is_ended());
        assert_eq!(there.take(&mut here), b"last");
        assert!(there.channel.is_ended());
        there.seal(b"still open");
        assert_eq!(here.take(&mut there), b"still open");
    }
}
