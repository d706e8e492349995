//! Bytes over a plain stream of rustls: blocking sockets, the cipher of the backend, one thread at each end.

use std::cell::RefCell;
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned,
};
use transload::remote::PrivateKey;

use super::halves;
use crate::contest::{Contender, POISON};
use crate::process::Process;
use crate::way::Way;

/// Every message has a header of 8 bytes: a length, and above it what to do.
const HEADER: usize = 8;
const KIND_SHIFT: u32 = 56;
/// Up to this size a message is written with its header, in one record.
const ONE_RECORD: usize = 16 << 10;

/// No reads of the socket in advance: rustls asks for at most 4 KiB more than it has.
pub(super) const READS: usize = 0;
/// Larger than four records.
pub(super) const LARGE_READS: usize = 128 << 10;

/// What the other side answers once it has all bytes in its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Byte,
    /// The bytes.
    Same,
}

/// A stream to another process, and that process.
pub(super) struct Plain {
    stream: StreamOwned<ClientConnection, TcpStream>,
    _process: Process,
}

impl Plain {
    /// Sends all bytes once in each turn, and waits for the answer.
    pub(super) fn way(
        name: &str,
        bytes: &Rc<[u8]>,
        answer: Answer,
        reads: usize,
    ) -> Result<Box<dyn Contender>> {
        let plain = Rc::new(RefCell::new(Plain::connect(reads)?));
        let (poisoned, read) = (Rc::clone(&plain), Rc::clone(&plain));
        let (sent, bytes) = (Message::new(answer, bytes), Rc::clone(bytes));
        let len = bytes.len();
        let poison = move || {
            let poison = Message::new(Answer::Byte, &vec![POISON; len].into());
            poisoned.borrow_mut().say(&poison, &mut [0])
        };
        let mut answered = vec![0; sent.answer_len];
        let turn = move || plain.borrow_mut().say(&sent, &mut answered);
        let way = Way::boxed(
            name,
            turn,
            poison,
            // The memory of the other side comes back.
            move || Ok(read.borrow_mut().read(len)? == *bytes),
        );
        Ok(way)
    }

    fn connect(reads: usize) -> Result<Plain> {
        let program = std::env::current_exe()?;
        let mut process = halves::on_the_second(|| Process::start(&program, "plain"))?;
        let address = process.ask(&reads.to_string())?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyKey))
            .with_no_client_auth();
        let connection =
            ClientConnection::new(Arc::new(config), ServerName::try_from("transload")?)?;
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        Ok(Plain {
            stream: StreamOwned::new(connection, socket),
            _process: process,
        })
    }

    fn say(&mut self, message: &Message, answer: &mut [u8]) -> Result<()> {
        self.stream.write_all(&message.first)?;
        if let Some(rest) = &message.rest {
            self.stream.write_all(rest)?;
        }
        self.stream.flush()?;
        self.stream.read_exact(answer)?;
        Ok(())
    }

    /// Reads the first bytes of the other side's memory.
    fn read(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut all = vec![0; len];
        self.stream.write_all(&header(Kind::Read, len))?;
        self.stream.flush()?;
        self.stream.read_exact(&mut all)?;
        Ok(all)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write(Answer),
    Read,
}

const KINDS: [Kind; 3] = [
    Kind::Write(Answer::Byte),
    Kind::Write(Answer::Same),
    Kind::Read,
];

fn header(kind: Kind, len: usize) -> [u8; HEADER] {
    let number = KINDS.iter().position(|of| *of == kind).unwrap_or_default() as u64;
    (number << KIND_SHIFT | len as u64).to_le_bytes()
}

struct Message {
    /// The header, and the bytes if they are few.
    first: Vec<u8>,
    /// Many bytes begin records of their own, which are whole then.
    rest: Option<Rc<[u8]>>,
    answer_len: usize,
}

impl Message {
    fn new(answer: Answer, bytes: &Rc<[u8]>) -> Message {
        let mut first = header(Kind::Write(answer), bytes.len()).to_vec();
        let is_large = bytes.len() + HEADER > ONE_RECORD;
        if !is_large {
            first.extend_from_slice(bytes);
        }
        let answer_len = match answer {
            Answer::Byte => 1,
            Answer::Same => bytes.len(),
        };
        Message {
            first,
            rest: is_large.then(|| Rc::clone(bytes)),
            answer_len,
        }
    }
}

/// Tells an address, serves one connection there, and goes on until that ends. The line that it is asked with says how much
/// it reads from the socket in advance.
pub(crate) fn serve() -> Result<()> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let reads: usize = line.trim().parse()?;
    let key = PrivateKey::generate()?;
    let der = PrivatePkcs8KeyDer::from_pem_slice(key.to_pem().as_bytes())?;
    let key = provider().key_provider.load_private_key(der.into())?;
    let public = key.public_key().context("the key has a public half")?;
    let shown = CertificateDer::from(public.to_vec());
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(
            CertifiedKey::new(vec![shown], key),
        ))));
    config.send_tls13_tickets = 0;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    let connection = ServerConnection::new(Arc::new(config))?;
    match reads {
        READS => answer(&mut StreamOwned::new(connection, socket)),
        reads => {
            let socket = Ahead(BufReader::with_capacity(reads, socket));
            answer(&mut StreamOwned::new(connection, socket))
        }
    }
}

fn answer(stream: &mut (impl Read + Write)) -> Result<()> {
    let mut memory = Vec::new();
    let mut header = [0; HEADER];
    // The other side is gone when there is none.
    while stream.read_exact(&mut header).is_ok() {
        let header = u64::from_le_bytes(header);
        let kind = KINDS.get((header >> KIND_SHIFT) as usize);
        let len = (header & ((1 << KIND_SHIFT) - 1)) as usize;
        if memory.len() < len {
            memory.resize(len, 0);
        }
        let place = &mut memory[..len];
        match kind.context("there is no such kind of message")? {
            Kind::Write(answer) => {
                stream.read_exact(place)?;
                match answer {
                    Answer::Byte => stream.write_all(&[1])?,
                    Answer::Same => stream.write_all(place)?,
                }
            }
            Kind::Read => stream.write_all(place)?,
        }
        stream.flush()?;
    }
    Ok(())
}

/// A socket that is read in advance.
struct Ahead(BufReader<TcpStream>);

impl Read for Ahead {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Ahead {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// As the backend of other machines chooses them.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![rustls_graviola::suites::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![&rustls_graviola::kx::X25519],
        ..rustls_graviola::default_provider()
    })
}

/// Accepts each key: the other side is a process of this program, and what is measured begins after the handshake.
#[derive(Debug)]
struct AnyKey;

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
