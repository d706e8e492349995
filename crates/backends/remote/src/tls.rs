//! TLS 1.3 as sessions use it: one cipher suite, one key exchange, keys pinned on both sides, and neither tickets nor
//! early data.

mod channel;
mod pins;

use std::sync::Arc;

pub(crate) use channel::{Channel, RECORD, Received, sealed_len};
use pins::Pins;
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{
    AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, UnbufferedServerConnection,
};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use crate::key::{PrivateKey, PublicKey};

/// Why a TLS channel failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// One side does not accept the other's key.
    #[error(transparent)]
    WrongKey(Rejection),
    /// The peer does not speak TLS 1.3 as this crate does, or its bytes were altered on the way.
    #[error("TLS failed: {0}")]
    Tls(#[source] Cause),
}

/// The error of another library, which that library's version does not tie this crate's interface to.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Which side did not accept which key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The node has another key than this side expects.
    #[error(
        "the node's key is {shown} instead of {expected}; check the address, and use the new key only if the node's \
         owner confirms it"
    )]
    UnexpectedNode {
        /// The key that this side expects.
        expected: PublicKey,
        /// The node's key.
        shown: PublicKey,
    },
    /// The client's key is not among those that this node allows.
    #[error(
        "the client's key {shown} is not among the {allowed} allowed keys; allow it if you trust the client"
    )]
    UnknownClient {
        /// The client's key.
        shown: PublicKey,
        /// How many keys the node allows.
        allowed: usize,
    },
    /// The node does not allow this client's key.
    #[error(
        "the node does not allow this client's key {key}; add it to the keys that the node allows"
    )]
    RefusedByNode {
        /// The key of this side.
        key: PublicKey,
    },
    /// The client expects another key than this node's.
    #[error("the client expects another key than {key}, which this node has")]
    RefusedByClient {
        /// The key of this side.
        key: PublicKey,
    },
}

impl Channel {
    /// Starts the side that connects, to the node that has the key `node`.
    pub(crate) fn client(key: &PrivateKey, node: PublicKey) -> Result<Channel, ChannelError> {
        let pins = Pins::new(vec![node], key.public());
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(pins.clone())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                certified(key)?,
            )));
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        // The key alone says which node it is; the name is not sent.
        let name =
            ServerName::try_from("transload").map_err(|error| failed(rustls_other(error)))?;
        let connection = UnbufferedClientConnection::new(Arc::new(config), name).map_err(failed)?;
        Ok(Channel::new(connection.into(), pins))
    }

    /// Starts the side that accepts, for clients that have one of the keys `allowed`.
    pub(crate) fn server(key: &PrivateKey, allowed: &[PublicKey]) -> Result<Channel, ChannelError> {
        let pins = Pins::new(allowed.to_vec(), key.public());
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .with_client_cert_verifier(pins.clone())
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified(
                key,
            )?)));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        let connection = UnbufferedServerConnection::new(Arc::new(config)).map_err(failed)?;
        Ok(Channel::new(connection.into(), pins))
    }
}

/// Returns the one cipher suite and the one key exchange. Both sides are always this crate, so that a choice would only be
/// more to attack. AES-128-GCM has the strength of X25519, and is the fastest where processors have instructions for it.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![rustls_graviola::suites::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![&rustls_graviola::kx::X25519],
        ..rustls_graviola::default_provider()
    })
}

fn certified(key: &PrivateKey) -> Result<Arc<CertifiedKey>, ChannelError> {
    let der = key.to_der().clone_key().into();
    let signing = provider()
        .key_provider
        .load_private_key(der)
        .map_err(failed)?;
    let shown = CertificateDer::from(key.public().to_spki());
    Ok(Arc::new(CertifiedKey::new(vec![shown], signing)))
}

fn failed(error: rustls::Error) -> ChannelError {
    ChannelError::Tls(Arc::new(error))
}

fn rustls_other(error: impl std::error::Error + Send + Sync + 'static) -> rustls::Error {
    rustls::Error::Other(rustls::OtherError(Arc::new(error)))
}
