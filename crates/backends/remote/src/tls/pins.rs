//! Which keys a side accepts: the whole of the trust between machines.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature_with_raw_key;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    SignatureScheme,
};

use super::Rejection;
use crate::key::PublicKey;

/// The keys that a channel accepts, and the one that its peer has shown.
#[derive(Debug)]
pub(super) struct Pins {
    allowed: Vec<PublicKey>,
    own: PublicKey,
    shown: OnceLock<PublicKey>,
}

impl Pins {
    pub(super) fn new(allowed: Vec<PublicKey>, own: PublicKey) -> Arc<Pins> {
        Arc::new(Pins {
            allowed,
            own,
            shown: OnceLock::new(),
        })
    }

    /// Returns the key that the peer has shown. It is accepted, and the peer has it, once the handshake is over.
    pub(super) fn shown(&self) -> Option<PublicKey> {
        self.shown.get().copied()
    }

    /// Tells whether it was for a key that TLS failed, and if so for which.
    pub(super) fn rejection(&self, error: &Error, is_client: bool) -> Option<Rejection> {
        let key = self.own;
        match (error, is_client) {
            (Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure), true) => {
                Some(Rejection::UnexpectedNode {
                    expected: *self.allowed.first()?,
                    shown: self.shown()?,
                })
            }
            (Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure), _) => {
                Some(Rejection::UnknownClient {
                    shown: self.shown()?,
                    allowed: self.allowed.len(),
                })
            }
            // The alert that the peer's pins send.
            (Error::AlertReceived(rustls::AlertDescription::AccessDenied), true) => {
                Some(Rejection::RefusedByNode { key })
            }
            (Error::AlertReceived(rustls::AlertDescription::AccessDenied), false) => {
                Some(Rejection::RefusedByClient { key })
            }
            _ => None,
        }
    }

    fn check(&self, spki: &CertificateDer<'_>) -> Result<(), Error> {
        let shown = PublicKey::from_spki(spki).ok_or(CertificateError::BadEncoding)?;
        let _ = self.shown.set(shown);
        match self.allowed.contains(&shown) {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let spki = SubjectPublicKeyInfoDer::from(spki.as_ref());
        let known = rustls_graviola::default_provider().signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &spki, signature, &known)
    }
}

impl ServerCertVerifier for Pins {
    fn verify_server_cert(
        &self,
        spki: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(spki).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, spki, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SCHEME]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pins {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        spki: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(spki).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, spki, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SCHEME]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The one sort of signature.
const SCHEME: SignatureScheme = SignatureScheme::ED25519;
