//! The keys by which two machines know each other, and their files.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use graviola::signing::eddsa::Ed25519SigningKey;
use graviola::util::is_cpu_supported;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use transload_hal::{ErrorClass, SystemError, open_regular};
use zeroize::Zeroizing;

/// The secret half of a machine's key: an Ed25519 key. Clones share it, and it is overwritten in memory after the last
/// one.
#[derive(Clone)]
pub struct PrivateKey {
    pkcs8: Arc<Zeroizing<Vec<u8>>>,
    public: PublicKey,
}

impl PrivateKey {
    /// Makes a new key from the system's random numbers.
    ///
    /// # Errors
    /// [`KeyError::Random`] if the system gives none, and [`KeyError::Processor`].
    pub fn generate() -> Result<PrivateKey, KeyError> {
        check_processor()?;
        let key = Ed25519SigningKey::generate().map_err(|_| KeyError::Random)?;
        let mut pkcs8 = Zeroizing::new([0; LONGEST_PKCS8]);
        let pkcs8 = key.to_pkcs8_der(&mut *pkcs8);
        PrivateKey::from_pkcs8(pkcs8.map_err(|_| KeyError::Random)?)
    }

    /// Reads the text of a key: PKCS #8 in PEM, as [`PrivateKey::to_pem`] and `openssl genpkey -algorithm ed25519` write
    /// it.
    ///
    /// # Errors
    /// [`KeyError::Pem`] if the text has no such key.
    pub fn from_pem(text: &str) -> Result<PrivateKey, KeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|error| {
            let reason = format!("{error}");
            KeyError::Pem { reason }
        })?;
        PrivateKey::from_pkcs8(der.secret_pkcs8_der())
    }

    /// Returns the text of the key: PKCS #8 in PEM. The text is overwritten in memory when it is dropped.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let body = Zeroizing::new(STANDARD.encode(self.pkcs8.as_slice()));
        // Reserved for, since growing would leave a copy behind.
        let mut pem = Zeroizing::new(String::with_capacity(body.len() + 128));
        pem.push_str("-----BEGIN PRIVATE KEY-----\n");
        for (index, letter) in body.chars().enumerate() {
            if index > 0 && index % PEM_COLUMNS == 0 {
                pem.push('\n');
            }
            pem.push(letter);
        }
        pem.push_str("\n-----END PRIVATE KEY-----\n");
        pem
    }

    /// Reads a key from a file. Blocks on the disk.
    ///
    /// # Errors
    /// [`KeyError::Exposed`] on Unix if users other than the owner may access the file, [`KeyError::Read`] if it cannot
    /// be read, and [`KeyError::InFile`] if it contains no key.
    pub fn read(path: &Path) -> Result<PrivateKey, KeyError> {
        let failed = |source| KeyError::Read {
            path: path.into(),
            source,
        };
        let file = open_regular(path, OpenOptions::new().read(true)).map_err(failed)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                let path = path.into();
                return Err(KeyError::Exposed { path, mode });
            }
        }
        let mut text = Zeroizing::new(String::with_capacity(LONGEST_FILE as usize));
        file.take(LONGEST_FILE)
            .read_to_string(&mut text)
            .map_err(failed)?;
        PrivateKey::from_pem(&text).map_err(|error| KeyError::InFile {
            path: path.into(),
            source: Box::new(error),
        })
    }

    /// Writes the key to a new file, which on Unix its owner alone may access. Blocks on the disk, and returns once the
    /// disk has it.
    ///
    /// # Errors
    /// [`KeyError::Write`], also if there is a file at that path.
    pub fn write_new(&self, path: &Path) -> Result<(), KeyError> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(path).and_then(|mut file| {
            file.write_all(self.to_pem().as_bytes())?;
            file.sync_all()
        });
        written.map_err(|source| KeyError::Write {
            path: path.into(),
            source,
        })
    }

    /// Returns the public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Result<PrivateKey, KeyError> {
        check_processor()?;
        let key = Ed25519SigningKey::from_pkcs8_der(pkcs8).map_err(|error| {
            let reason = format!("not an Ed25519 key: {error:?}");
            KeyError::Pem { reason }
        })?;
        Ok(PrivateKey {
            pkcs8: Arc::new(Zeroizing::new(pkcs8.to_vec())),
            public: PublicKey(key.public_key().as_bytes()),
        })
    }

    /// Returns the key as rustls takes it.
    pub(crate) fn to_der(&self) -> PrivatePkcs8KeyDer<'_> {
        PrivatePkcs8KeyDer::from(self.pkcs8.as_slice())
    }
}

/// Shows the public half alone.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey(of {})", self.public)
    }
}

/// A machine's public key, by which others know it. Its text is base64url (RFC 4648, section 5) without padding, 43
/// letters, so that it needs no quotes in a shell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; PublicKey::LEN]);

impl PublicKey {
    /// How many bytes a key has.
    pub const LEN: usize = 32;

    /// Returns the key as TLS shows it: a SubjectPublicKeyInfo of RFC 8410.
    pub(crate) fn to_spki(self) -> Vec<u8> {
        [&SPKI_PREFIX, &self.0[..]].concat()
    }

    /// Reads what TLS shows; `None` if it is no Ed25519 key.
    pub(crate) fn from_spki(spki: &[u8]) -> Option<PublicKey> {
        let key = spki.strip_prefix(&SPKI_PREFIX)?;
        key.try_into().ok().map(PublicKey)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PublicKey, KeyError> {
        // Into a fixed array, so that a long text allocates nothing.
        let mut key = [0; PublicKey::LEN];
        match URL_SAFE_NO_PAD.decode_slice(text, &mut key) {
            Ok(PublicKey::LEN) if text.len() == TEXT_LEN => Ok(PublicKey(key)),
            _ => Err(KeyError::PublicText { len: text.len() }),
        }
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The processor lacks instructions that encryption is made of here.
    #[error(
        "this processor lacks instructions that encryption uses: AES, carry-less multiplication, AVX2, BMI1 and ADX, which \
         x86-64 processors have since 2014, or on ARM AES, PMULL and SHA-2"
    )]
    Processor,
    /// The system has no random numbers.
    #[error("the system gives no random numbers for a new key")]
    Random,
    /// The text has no private key.
    #[error(
        "not a private key in PEM: {reason}; `openssl genpkey -algorithm ed25519` makes one, too"
    )]
    Pem {
        /// What is wrong with the text.
        reason: String,
    },
    /// The text is no public key.
    #[error(
        "not a public key: a key has {TEXT_LEN} letters of A-Z, a-z, 0-9, - and _, and this text of {len} bytes is \
         not one"
    )]
    PublicText {
        /// The length of the text in bytes.
        len: usize,
    },
    /// The file cannot be read.
    #[error("cannot read the key file {}: {}", path.display(), SystemError(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Users other than the owner may access the file.
    #[error(
        "the key file {} has mode {mode:03o}, so that other users may access it; run `chmod 600` on it, or make a new \
         key if others may have read it",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file contains no key.
    #[error("the key file {} has no key: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with its text.
        source: Box<KeyError>,
    },
    /// The file cannot be made.
    #[error("cannot write the key file {}: {}", path.display(), SystemError(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl KeyError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            KeyError::Processor => ErrorClass::Unsupported,
            KeyError::Random => ErrorClass::Failed,
            KeyError::Read { source, .. } | KeyError::Write { source, .. } => {
                ErrorClass::of_io(source)
            }
            KeyError::Pem { .. }
            | KeyError::PublicText { .. }
            | KeyError::Exposed { .. }
            | KeyError::InFile { .. } => ErrorClass::Caller,
        }
    }
}

/// The letters of a public key: 32 bytes at 6 bits a letter.
const TEXT_LEN: usize = 43;

/// The DER of an Ed25519 SubjectPublicKeyInfo up to the key itself (RFC 8410, section 4).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The width of PEM's lines (RFC 7468, section 2).
const PEM_COLUMNS: usize = 64;

/// A key file has about 120 bytes; comments may stand before the key.
const LONGEST_FILE: u64 = 16 << 10;

/// The library of ciphers panics on a processor that it does not know, so no key exists there.
fn check_processor() -> Result<(), KeyError> {
    match is_cpu_supported() {
        true => Ok(()),
        false => Err(KeyError::Processor),
    }
}

/// The longest form of an Ed25519 key in bytes, with room to spare: RFC 8410 has 48, and 83 with the public half.
const LONGEST_PKCS8: usize = 128;

/// Fills bytes with the system's random numbers, such as those that name something that only its owners may find.
///
/// # Errors
/// [`KeyError::Random`] when the system has none, and [`KeyError::Processor`].
pub fn fill_random(bytes: &mut [u8]) -> Result<(), KeyError> {
    check_processor()?;
    graviola::random::fill(bytes).map_err(|_| KeyError::Random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_keys_round_trip() {
        for _ in 0..32 {
            let key = PrivateKey::generate().unwrap();
            let text = key.public().to_string();
            assert_eq!(text.len(), TEXT_LEN);
            assert!(!text.contains([',', '=', '/', '+']));
            assert_eq!(text.parse::<PublicKey>().unwrap(), key.public());
            let again = PrivateKey::from_pem(&key.to_pem()).unwrap();
            assert_eq!(again.public(), key.public());
            assert_eq!(again.pkcs8, key.pkcs8);
        }
    }

    #[test]
    fn a_key_without_its_public_half_is_read() {
        // RFC 8410, section 10.3.
        let pem = "-----BEGIN PRIVATE KEY-----\n\
            MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
            -----END PRIVATE KEY-----\n";
        let key = PrivateKey::from_pem(pem).unwrap();
        let public = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE";
        assert_eq!(key.public().to_string(), public);
    }

    #[test]
    fn other_texts_are_no_keys() {
        let key = PrivateKey::generate().unwrap();
        let text = key.public().to_string();
        for wrong in ["", &text[1..], &format!("{text}A"), &"!".repeat(43)] {
            let error = wrong.parse::<PublicKey>().unwrap_err();
            assert!(matches!(error, KeyError::PublicText { len } if len == wrong.len()));
        }
        for wrong in ["", "key", &key.to_pem()[..80]] {
            assert!(matches!(
                PrivateKey::from_pem(wrong),
                Err(KeyError::Pem { .. })
            ));
        }
        let secret = format!("{key:?}");
        assert_eq!(secret, format!("PrivateKey(of {text})"));
    }

    #[test]
    fn a_file_is_never_overwritten_and_never_exposed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.key");
        let key = PrivateKey::generate().unwrap();
        key.write_new(&path).unwrap();
        assert_eq!(PrivateKey::read(&path).unwrap().public(), key.public());
        let again = PrivateKey::generate().unwrap().write_new(&path);
        assert!(matches!(again, Err(KeyError::Write { .. })));
        assert_eq!(PrivateKey::read(&path).unwrap().public(), key.public());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |mode| {
                let permissions = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(&path, permissions).unwrap();
            };
            assert_eq!(
                std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
            mode(0o640);
            let exposed = PrivateKey::read(&path);
            assert!(matches!(
                exposed,
                Err(KeyError::Exposed { mode: 0o640, .. })
            ));
            mode(0o400);
        }
        assert!(PrivateKey::read(&path).is_ok());
        assert!(matches!(
            PrivateKey::read(folder.path()),
            Err(KeyError::Read { .. })
        ));
    }
}
