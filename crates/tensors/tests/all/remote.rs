//! Models in a store: an HTTP server on this machine, which can be told to do wrong.

mod server;

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use transload_tensors::transload::hal::{
    AllocError, Backend, Buffer, DeviceKind, External, HostSpan, MemoryId, StorageId, StorageInfo,
};
use transload_tensors::transload::{
    self, AllocSpec, ErrorClass, OnFailure, Place, Request, TransferError, TransferManager,
};
use transload_tensors::{
    DType, LoadError, Loader, Loading, Model, ModelError, Reading, Remote, RemoteObject,
    object_store::ObjectStore,
};
use transload_testkit::conformance::{self, Exceptions, Harness};

use crate::devices;
use crate::files::{Gguf, safetensors};
use server::{Server, Wrong};

/// A server, a store of it, and a manager of this host that reads it.
struct Net {
    server: Server,
    store: Arc<dyn ObjectStore>,
    remote: Arc<Remote>,
    manager: TransferManager,
}

impl Net {
    fn new() -> Net {
        let server = Server::new();
        let remote = Arc::new(Remote::new());
        let manager = devices::manager(64 << 20, 64 << 20);
        manager.register_shared(remote.clone()).unwrap();
        Net {
            store: server.store(),
            server,
            remote,
            manager,
        }
    }

    fn open(&self, path: &str) -> Result<Model, ModelError> {
        Model::open_remote(&self.remote, &self.store, path)
    }

    /// Serves a model of one tensor of bytes, and opens it.
    fn with_tensor(&self, bytes: usize) -> Model {
        let header =
            format!(r#"{{"a":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
        self.server
            .put("m/a.safetensors", &safetensors(&header, bytes));
        let model = self.open("m/a.safetensors").unwrap();
        self.server.asked();
        model
    }

    fn start(&self, model: &Model, to: &str) -> Result<Loading, LoadError> {
        let loader = Loader::new(&self.manager);
        loader.load(model).to(to.parse::<Place>().unwrap()).start()
    }

    /// Loads all tensors, and compares them with what is served.
    fn load(&self, model: &Model, to: &str) -> Result<(), LoadError> {
        for tensor in self.start(model, to)? {
            let (tensor, info) = tensor.map(|tensor| (tensor.clone(), tensor.info().clone()))?;
            let path = model.files()[info.file].path().to_str().unwrap();
            let range = info.offset as usize..(info.offset + info.len_bytes) as usize;
            let arrived = self.manager.read_to_vec(tensor.buffer()).unwrap();
            assert!(arrived == self.server.read(path, range), "{}", info.name);
        }
        Ok(())
    }

    /// The text of an error of a load, which is no mistake of the caller's and names the object.
    fn fails(&self, model: &Model) -> String {
        let error = self.load(model, "cpu:0").unwrap_err();
        assert_eq!(error.class(), ErrorClass::Failed, "{error}");
        let text = error.to_string();
        assert!(text.contains("m/a.safetensors"), "{text}");
        text
    }
}

#[test]
fn a_model_of_a_store_arrives_in_any_memory() {
    let net = Net::new();
    let shard = |name: &str, len: usize| {
        let header = format!(
            r#"{{"{name}.w":{{"dtype":"F32","shape":[{len}],"data_offsets":[0,{0}]}},
            "{name}.b":{{"dtype":"U8","shape":[3],"data_offsets":[{0},{1}]}}}}"#,
            4 * len,
            4 * len + 3
        );
        safetensors(&header, 4 * len + 3)
    };
    net.server.put("m/one.safetensors", &shard("one", 300_000));
    net.server.put("m/two.safetensors", &shard("two", 5));
    let index = r#"{"weight_map":{"one.w":"one.safetensors","one.b":"one.safetensors","two.w":"two.safetensors","two.b":"two.safetensors"}}"#;
    net.server
        .put("m/model.safetensors.index.json", index.as_bytes());
    let gguf = Gguf::default().tensor("g", &[64], 0, 0);
    net.server.put("m/g.gguf", &gguf.file(32, 256));

    let model = net.open("m/model.safetensors.index.json").unwrap();
    assert_eq!((model.files().len(), model.tensors().len()), (2, 4));
    let asked = net.server.asked();
    assert!(
        asked.iter().all(|range| range.len() <= 512 << 10),
        "headers alone are read: {asked:?}"
    );
    for place in ["cpu:0", "cpu:0/shared", "sim:0"] {
        net.load(&model, place).unwrap();
        net.load(&net.open("m/g.gguf").unwrap(), place).unwrap();
    }
    // Parts by their numbers, with a list that is not there.
    for (number, name) in ["one", "two"].into_iter().enumerate() {
        let path = format!("m/p-0000{}-of-00002.safetensors", number + 1);
        net.server.put(&path, &shard(name, 5));
    }
    // A store may answer so, in place of 404, for the list that it does not have.
    for missing in [404, 403, 401] {
        net.server.answer_missing(missing);
        let parts = net.open("m/p-00002-of-00002.safetensors").unwrap();
        assert_eq!((parts.files().len(), parts.tensors().len()), (2, 4));
    }
    let error = net.open("m/q-00001-of-00002.safetensors").unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("q-00001-of-00002") && told.contains("401"),
        "{told}"
    );
    let error = net.open("m/no.safetensors.index.json").unwrap_err();
    assert!(error.to_string().contains("401"), "{error}");
    // Of a list that was named, what the store said is told.
    assert!(
        matches!(&error, ModelError::Read { source, .. } if source.kind() == ErrorKind::PermissionDenied),
        "{error}"
    );
    let loader = Loader::new(&net.manager);
    let plan = loader.load(&model).plan().unwrap();
    assert_eq!(plan.files().next().unwrap().1, &Reading::Remote);
    let explained = plan.explain().unwrap()[0].to_string();
    assert!(explained.contains("remote:0/file"), "{explained}");
    let error = loader.load(&model).dtype(DType::F16).plan().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
    for tensor in loader
        .load(&model)
        .to("sim:0".parse::<Place>().unwrap())
        .verify()
        .start()
        .unwrap()
    {
        tensor.unwrap();
    }
}

#[test]
fn a_long_header_takes_a_few_requests() {
    let net = Net::new();
    let long = "x".repeat(3 << 20);
    let header = format!(
        r#"{{"__metadata__":{{"x":"{long}"}},"a":{{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}}}"#
    );
    net.server.put("long.safetensors", &safetensors(&header, 9));
    let model = net.open("long.safetensors").unwrap();
    let asked = net.server.asked();
    assert_eq!(asked[..2], [0..512 << 10, 512 << 10..1 << 20]);
    assert!(asked.len() <= 4, "{asked:?}");
    net.load(&model, "cpu:0").unwrap();
}

#[test]
fn a_long_range_is_fetched_in_parts() {
    let net = Net::new();
    let model = net.with_tensor((20 << 20) + 1);
    net.load(&model, "cpu:0").unwrap();
    let mut lens: Vec<usize> = net.server.asked().iter().map(Range::len).collect();
    lens.sort_unstable();
    assert_eq!(lens, [1, 4 << 20, 4 << 20, 4 << 20, 4 << 20, 4 << 20]);
    net.load(&model, "sim:0").unwrap();
}

#[test]
fn the_plan_says_what_is_read_for_a_slice() {
    let net = Net::new();
    let header = r#"{"near":{"dtype":"U8","shape":[100,1000],"data_offsets":[0,100000]},
        "far":{"dtype":"U8","shape":[3,400000],"data_offsets":[100000,1300000]}}"#;
    net.server
        .put("m/a.safetensors", &safetensors(header, 1_300_000));
    let model = net.open("m/a.safetensors").unwrap();
    let loader = Loader::new(&net.manager);
    for (name, over) in [("near", 99 * 990), ("far", 0)] {
        net.server.asked();
        let load = loader
            .load(&model)
            .only([name])
            .slice(|of| Some(vec![0..of.shape[0], 5..15]));
        let plan = load.plan().unwrap();
        assert_eq!(plan.over_read_bytes(), over, "{name}");
        let read = plan.read_bytes();
        let tensor = plan.start().unwrap().next().unwrap().unwrap();
        let asked: usize = net.server.asked().iter().map(Range::len).sum();
        assert_eq!(asked as u64, read, "{name}");
        let (info, arrived) = (
            tensor.info(),
            net.manager.read_to_vec(tensor.buffer()).unwrap(),
        );
        let rows = (0..info.shape[0]).flat_map(|row| {
            let at = (info.offset + row * info.shape[1] + 5) as usize;
            net.server.read("m/a.safetensors", at..at + 10)
        });
        assert_eq!(arrived, rows.collect::<Vec<u8>>(), "{name}");
    }
}

#[test]
fn what_passes_is_repeated_and_the_bytes_are_right() {
    let net = Net::new();
    let model = net.with_tensor(300_000);
    for (wrong, times) in [
        (Wrong::Status(500), 2),
        (Wrong::Breaks(100_000), 1),
        (Wrong::Breaks(0), 2),
    ] {
        net.server.err(wrong, times);
        net.load(&model, "cpu:0")
            .unwrap_or_else(|error| panic!("{wrong:?}: {error}"));
        net.server.err(wrong, times);
        net.open("m/a.safetensors")
            .unwrap_or_else(|error| panic!("{wrong:?}: {error}"));
    }
}

#[test]
fn what_stays_wrong_is_an_error_that_names_object_and_range() {
    let net = Net::new();
    let model = net.with_tensor(300_000);
    let first = model.tensors()[0].offset;
    for (wrong, told) in [
        (Wrong::IgnoresRanges, "Range request not supported"),
        (Wrong::Shortens(10), "ended at byte"),
        (Wrong::Breaks(1000), "body"),
        (Wrong::Status(500), "500"),
        (Wrong::Status(403), "403"),
        (
            Wrong::Lengthens(1),
            "the object was changed: its length was",
        ),
        (Wrong::Shifts, "Requested"),
    ] {
        net.server.err(wrong, usize::MAX);
        let text = net.fails(&model);
        assert!(text.contains(told), "{wrong:?}: {text}");
        assert!(
            text.contains(&format!("bytes {first} to {}", first + 300_000)),
            "{text}"
        );
        if !matches!(wrong, Wrong::Lengthens(_)) {
            let error = net.open("m/a.safetensors").unwrap_err();
            assert!(
                error.to_string().contains("m/a.safetensors"),
                "{wrong:?}: {error}"
            );
        }
        // An error of an object closes no way to others.
        net.server.err(wrong, 0);
        net.load(&model, "cpu:0").unwrap();
    }
}

#[test]
fn another_object_in_the_middle_is_an_error() {
    let net = Net::new();
    for (first, then, matches, told) in [
        ("\"a\"", "\"b\"", false, "its ETag was \"a\" and is \"b\""),
        ("\"a\"", "\"b\"", true, "412"),
        (
            "W/\"a\"",
            "W/\"b\"",
            true,
            "its ETag was W/\"a\" and is W/\"b\"",
        ),
    ] {
        net.server.tag(first, matches);
        let model = net.with_tensor(5000);
        net.load(&model, "cpu:0").unwrap();
        net.server.tag(then, matches);
        let text = net.fails(&model);
        assert!(text.contains(told), "{text}");
    }
    net.server.tag("", false);
    let model = net.with_tensor(5000);
    net.load(&model, "cpu:0").unwrap();
    net.server.remove("m/a.safetensors");
    assert!(net.fails(&model).contains("404"));
    let error = net.open("m/a.safetensors").unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller, "{error}");
}

#[test]
fn a_stalled_answer_ends_by_cancel_and_deadline() {
    let net = Net::new();
    let model = net.with_tensor(300_000);
    net.server.err(Wrong::Stalls(1000), usize::MAX);
    for place in ["cpu:0", "sim:0"] {
        let stalls = net.server.stalls();
        let mut loading = net.start(&model, place).unwrap();
        stalls.recv().unwrap();
        loading.canceller().cancel();
        let error = loading.next().unwrap().unwrap_err();
        let LoadError::Transfer { source, .. } = &error else {
            panic!("{error}");
        };
        assert!(
            matches!(**source, TransferError::Cancelled { .. }),
            "{error}"
        );
    }
    let loader = Loader::new(&net.manager);
    let soon = net.manager.now() + Duration::from_millis(20);
    let mut loading = loader.load(&model).deadline(soon).start().unwrap();
    let error = loading.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("deadline"), "{error}");
    // A load that is dropped is cancelled, and so is a backend with requests under way.
    let stalls = net.server.stalls();
    drop(net.start(&model, "cpu:0").unwrap());
    drop(stalls);
    net.server.err(Wrong::Stalls(0), 0);
    net.load(&model, "cpu:0").unwrap();
}

#[test]
fn a_manager_without_the_backend_says_so() {
    let net = Net::new();
    let model = net.with_tensor(100);
    let other = TransferManager::builder().host().build().unwrap();
    let error = Loader::new(&other).load(&model).plan().unwrap_err();
    assert!(matches!(error, LoadError::NoBackend { .. }), "{error}");
    assert!(error.to_string().contains("register a `Remote`"), "{error}");
    let object = net.remote.find(&net.store, "m/a.safetensors").unwrap();
    assert!(object.adopt(&other).is_err());
    // Nor are objects mapped.
    // SAFETY: there is nothing to map.
    let mapped = unsafe { Loader::new(&net.manager).map(&model) };
    let error = mapped.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller, "{error}");
}

#[test]
fn an_object_is_memory_and_a_runtime_of_the_program_does_not_matter() {
    let net = Net::new();
    net.server.put("x", &[7; 4000]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let bytes = runtime.block_on(async {
        let object = net.remote.find(&net.store, "x").unwrap();
        assert_eq!(
            (object.len_bytes(), object.path().to_str()),
            (4000, Some("x"))
        );
        let object = object.adopt(&net.manager).unwrap();
        net.manager
            .read_to_vec(object.slice(1000..1500).unwrap())
            .unwrap()
    });
    assert_eq!(bytes, [7; 500]);
    // More transfers than the backend takes at a time.
    let object = net.remote.find(&net.store, "x").unwrap();
    let object = object.adopt(&net.manager).unwrap();
    let copy = net
        .manager
        .allocate("cpu:0".parse().unwrap(), AllocSpec::bytes(4000));
    let copy = copy.unwrap();
    let part = |of: &transload::Buffer, at: u64| of.slice(at * 20..at * 20 + 20).unwrap();
    let requests = (0..200).map(|at| Request::new(part(&object, at), part(&copy, at)));
    let requests: Vec<Request> = requests.collect();
    let batch = net.manager.copy_batch(&requests, OnFailure::Stop).unwrap();
    for transfer in batch.into_transfers() {
        transfer.wait().unwrap();
    }
    assert_eq!(net.manager.read_to_vec(&copy).unwrap(), [7; 4000]);
}

/// Objects of a server, which the suite writes and reads by itself.
struct Suite {
    net: Net,
    backend: Remote,
    count: AtomicUsize,
}

impl Harness for Suite {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn make(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        if memory.device.kind == DeviceKind::CPU {
            return Ok(heap(memory, spec.len_bytes));
        }
        let alignment = spec.alignment;
        if alignment > 1 {
            let limit = 1;
            return Err(AllocError::Alignment {
                memory,
                alignment,
                limit,
            });
        }
        if spec.len_bytes == 0 {
            return self.backend.allocate(memory, spec);
        }
        let name = self.count.fetch_add(1, Ordering::Relaxed).to_string();
        self.net
            .server
            .put(&name, &vec![0; spec.len_bytes as usize]);
        let object = self.backend.find(&self.net.store, &name).unwrap();
        // SAFETY: an object is what it says.
        Ok(unsafe { self.backend.import(memory, External::object(object)) }.unwrap())
    }

    fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> bool {
        if let Some(object) = buffer.native::<RemoteObject>() {
            let name = object.path().to_str().unwrap();
            self.net.server.write(name, offset as usize, bytes);
            return true;
        }
        let span = buffer.host(offset, bytes.len() as u64).unwrap();
        // SAFETY: the suite fills buffers that no operation uses.
        unsafe { HostSpan::of(bytes).copy_to(span) };
        true
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> bool {
        if let Some(object) = buffer.native::<RemoteObject>() {
            let range = offset as usize..offset as usize + out.len();
            out.copy_from_slice(&self.net.server.read(object.path().to_str().unwrap(), range));
            return true;
        }
        let span = buffer.host(offset, out.len() as u64).unwrap();
        // SAFETY: the suite reads buffers that no operation writes.
        unsafe { span.copy_to(HostSpan::of_mut(out)) };
        true
    }
}

fn heap(memory: MemoryId, len_bytes: u64) -> Buffer {
    let mut block = vec![0u8; len_bytes as usize];
    let host = HostSpan::of_mut(&mut block);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes,
        memory,
        backend: transload_tensors::transload::hal::HOST,
        writable: true,
        host: Some(host),
    };
    // SAFETY: the buffer owns the vector, whose block stays in place.
    unsafe { Buffer::new(info, Box::new(block)) }
}

#[test]
fn the_backend_conforms() {
    let suite = Suite {
        net: Net::new(),
        backend: Remote::new(),
        count: AtomicUsize::new(0),
    };
    let report = conformance::run(&suite, &Exceptions::none());
    println!("{report}");
    report.assert_passed();
}
