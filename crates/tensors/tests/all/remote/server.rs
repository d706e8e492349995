//! An HTTP server of the tests, which can be told to do wrong, and a store that asks it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use transload_tensors::object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use transload_tensors::object_store::http::HttpBuilder;
use transload_tensors::object_store::{
    self, BackoffConfig, ClientOptions, ObjectStore, RetryConfig,
};

/// What the server does wrong, with how many of the next answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wrong {
    /// Answers with the whole object.
    IgnoresRanges,
    /// Says that the answer is so many bytes shorter, and sends as few; the range that it names is the right one.
    Shortens(usize),
    /// Sends so many bytes of the answer, and closes the connection.
    Breaks(usize),
    /// Sends so many bytes of the answer, and no more.
    Stalls(usize),
    /// Answers with that status.
    Status(u16),
    /// Says that the object is so many bytes longer.
    Lengthens(usize),
    /// Answers with the bytes after those that were asked for.
    Shifts,
}

#[derive(Default)]
struct State {
    objects: HashMap<String, Vec<u8>>,
    wrong: Option<(Wrong, usize)>,
    tag: String,
    /// What it answers for an object that it does not have; 404 in place of 0.
    missing: u16,
    /// Whether it looks at `If-Match`.
    matches: bool,
    /// The ranges that were asked for.
    asked: Vec<Range<usize>>,
    stalled: Option<Sender<()>>,
    is_over: bool,
}

pub(super) struct Server {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub(super) fn new() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = State {
            tag: "\"first\"".into(),
            ..State::default()
        };
        let server = Server {
            state: Arc::new(Mutex::new(state)),
            address: listener.local_addr().unwrap(),
        };
        let state = Arc::clone(&server.state);
        thread::spawn(move || {
            while let Ok((connection, _)) = listener.accept() {
                if lock(&state).is_over {
                    return;
                }
                let state = Arc::clone(&state);
                // An error is the client's end of the connection.
                thread::spawn(move || answer(&state, connection).ok());
            }
        });
        server
    }

    /// Returns a store of the server's objects, which repeats what fails three times, at once.
    pub(super) fn store(&self) -> Arc<dyn ObjectStore> {
        let at_once = BackoffConfig {
            init_backoff: Duration::from_millis(1),
            max_backoff: Duration::from_millis(1),
            base: 2.0,
        };
        let retry = RetryConfig {
            backoff: at_once,
            max_retries: 3,
            ..RetryConfig::default()
        };
        let builder = HttpBuilder::new().with_url(format!("http://{}", self.address));
        let builder = builder.with_retry(retry).with_http_connector(Connector);
        Arc::new(builder.build().unwrap())
    }

    pub(super) fn put(&self, name: &str, bytes: &[u8]) {
        lock(&self.state).objects.insert(name.into(), bytes.into());
    }

    /// Writes bytes of an object, which keeps its ETag.
    pub(super) fn write(&self, name: &str, at: usize, bytes: &[u8]) {
        let mut state = lock(&self.state);
        state.objects.get_mut(name).unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn read(&self, name: &str, range: Range<usize>) -> Vec<u8> {
        lock(&self.state).objects[name][range].to_vec()
    }

    pub(super) fn remove(&self, name: &str) {
        lock(&self.state).objects.remove(name);
    }

    /// Does wrong with so many of the next answers.
    pub(super) fn err(&self, wrong: Wrong, times: usize) {
        lock(&self.state).wrong = Some((wrong, times));
    }

    /// What it answers from now on for objects that it does not have.
    pub(super) fn answer_missing(&self, code: u16) {
        lock(&self.state).missing = code;
    }

    /// Gives all objects another ETag, or none.
    pub(super) fn tag(&self, tag: &str, matches: bool) {
        let mut state = lock(&self.state);
        (state.tag, state.matches) = (tag.into(), matches);
    }

    /// Returns what tells of stalled answers.
    pub(super) fn stalls(&self) -> Receiver<()> {
        let (tell, told) = channel();
        lock(&self.state).stalled = Some(tell);
        told
    }

    /// Returns the ranges that were asked for since the last call.
    pub(super) fn asked(&self) -> Vec<Range<usize>> {
        std::mem::take(&mut lock(&self.state).asked)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        lock(&self.state).is_over = true;
        let _ = TcpStream::connect(self.address);
    }
}

/// Answers one request, and closes the connection.
fn answer(state: &Mutex<State>, mut connection: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(connection.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut headers = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((key, value)) = line.split_once(": ") else {
            break;
        };
        headers.insert(key.to_ascii_lowercase(), value.to_owned());
    }
    let name = first
        .split(' ')
        .nth(1)
        .unwrap_or("")
        .trim_start_matches('/');
    let mut guard = lock(state);
    let wrong = match &mut guard.wrong {
        Some((wrong, times)) if *times > 0 => {
            *times -= 1;
            Some(*wrong)
        }
        _ => None,
    };
    let Some(object) = guard.objects.get(name) else {
        let code = guard.missing;
        drop(guard);
        return status(&mut connection, if code == 0 { 404 } else { code });
    };
    if let Some(Wrong::Status(code)) = wrong {
        drop(guard);
        return status(&mut connection, code);
    }
    let wanted = headers.get("if-match");
    if guard.matches && wanted.is_some_and(|wanted| *wanted != guard.tag) {
        drop(guard);
        return status(&mut connection, 412);
    }
    let len = object.len();
    let range = headers.get("range").and_then(|text| {
        let (start, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        let end = last.parse::<usize>().ok()? + 1;
        Some(start.parse().ok()?..end.min(len))
    });
    let range = range.unwrap_or(0..len);
    let (head, told, bytes) = match wrong {
        Some(Wrong::IgnoresRanges) => ("200 OK", String::new(), object.clone()),
        _ => {
            let by = usize::from(matches!(wrong, Some(Wrong::Shifts)));
            let sent = range.start + by..range.end.min(len - by) + by;
            let more = match wrong {
                Some(Wrong::Lengthens(by)) => by,
                _ => 0,
            };
            let (start, last) = (sent.start, sent.end - 1);
            let told = format!("Content-Range: bytes {start}-{last}/{}\r\n", len + more);
            ("206 Partial Content", told, object[sent].to_vec())
        }
    };
    let tag = match &*guard.tag {
        "" => String::new(),
        tag => format!("ETag: {tag}\r\n"),
    };
    let stalled = guard.stalled.clone();
    guard.asked.push(range);
    drop(guard);
    let (said, sent) = match wrong {
        Some(Wrong::Shortens(by)) => (bytes.len() - by, bytes.len() - by),
        Some(Wrong::Breaks(after) | Wrong::Stalls(after)) => (bytes.len(), after.min(bytes.len())),
        _ => (bytes.len(), bytes.len()),
    };
    write!(
        connection,
        "HTTP/1.1 {head}\r\n{told}{tag}Content-Length: {said}\r\n\r\n"
    )?;
    connection.write_all(&bytes[..sent])?;
    if let Some(Wrong::Stalls(_)) = wrong {
        let _ = stalled.map(|stalled| stalled.send(()));
        // Until the client closes the connection.
        connection.read_to_end(&mut Vec::new())?;
    }
    Ok(())
}

fn status(connection: &mut TcpStream, code: u16) -> std::io::Result<()> {
    write!(
        connection,
        "HTTP/1.1 {code} No\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Asks over a new connection for each request, without TLS.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Connector))
    }
}

#[async_trait::async_trait]
impl HttpService for Connector {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let failed = |error: hyper::Error| HttpError::new(HttpErrorKind::Interrupted, error);
        let authority = request.uri().authority().unwrap().to_string();
        let connected = tokio::net::TcpStream::connect(&authority).await;
        let io = connected.map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(io)).await;
        let (mut sender, connection) = handshake.map_err(failed)?;
        tokio::spawn(connection);
        request
            .headers_mut()
            .insert("host", authority.parse().unwrap());
        *request.uri_mut() = request.uri().path().parse().unwrap();
        let (parts, body) = sender
            .send_request(request)
            .await
            .map_err(failed)?
            .into_parts();
        let body = HttpResponseBody::new(body.map_err(failed));
        Ok(HttpResponse::from_parts(parts, body))
    }
}
