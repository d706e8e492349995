//! Transload fills burn's tensors as burn's own loader does, bit for bit, and touches nothing beside them.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use burn::cubecl::future::block_on;
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::wgpu::{WgpuInitError, WgpuSetup, wgpu};
use burn::tensor::{Device, Tensor};
use transload_burn::transload_tensors::transload::wgpu_backend::open_device;
use transload_burn::{Error, Loader, Weights};

/// The device of all tests: burn opens one once in a process. None where there is no adapter.
fn loader() -> Option<&'static Loader> {
    static LOADER: LazyLock<Option<Loader>> =
        LazyLock::new(|| match Loader::new(Device::wgpu_options()) {
            Err(Error::Device(WgpuInitError::AdapterUnavailable { .. })) => None,
            loader => Some(loader.unwrap()),
        });
    if LOADER.is_none() {
        println!("skipped: no adapter is here");
    }
    LOADER.as_ref()
}

/// Writes a safetensors file.
fn write(path: &Path, tensors: &[(&str, &str, &[usize], &[u8])]) {
    let (mut header, mut bytes) = (Vec::new(), Vec::new());
    for (name, dtype, shape, own) in tensors {
        let (from, to) = (bytes.len(), bytes.len() + own.len());
        header.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}"#
        ));
        bytes.extend_from_slice(own);
    }
    let header = format!("{{{}}}", header.join(","));
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length, header.as_bytes(), &bytes].concat()).unwrap();
}

fn numbers(len: usize, step: f32) -> Vec<f32> {
    (0..len).map(|at| at as f32 * step - 7.).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|of| of.to_le_bytes()).collect()
}

/// A model of a linear layer and of tensors of other types.
fn model(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("model.safetensors");
    let (weight, bias) = (bytes(&numbers(15, 0.37)), bytes(&numbers(5, 1.1)));
    let large = bytes(&numbers(700_001, 0.01));
    write(
        &path,
        &[
            ("f16", "F16", &[3], &[0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00]),
            (
                "bf16",
                "BF16",
                &[1, 3],
                &[0x80, 0x3f, 0x49, 0x40, 0x80, 0xff],
            ),
            ("a.weight", "F32", &[5, 3], &weight),
            ("a.bias", "F32", &[5], &bias),
            ("empty", "F32", &[0, 2], &[]),
            ("integers", "I64", &[1], &[1; 8]),
            ("large", "F32", &[700_001], &large),
        ],
    );
    path
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec::<f32>().unwrap()
}

fn check(weights: &Weights, device: &Device) {
    let tensor = |name| values(weights.tensor::<1>(name).unwrap());
    assert_eq!(tensor("f16"), [1., -2., 2f32.powi(-24)]);
    let bf16 = weights.tensor::<2>("bf16").unwrap();
    assert_eq!(bf16.dims(), [1, 3]);
    assert_eq!(values(bf16), [1., 3.140625, f32::NEG_INFINITY]);
    assert_eq!(values(weights.tensor::<2>("empty").unwrap()), [0f32; 0]);
    assert_eq!(tensor("large"), numbers(700_001, 0.01));
    for round in 0..50 {
        // Commands that burn has not submitted yet, on memory that burn then gives to the tensor, and beside it.
        let before = Tensor::<1>::full([5], round as f32, device) * 2.;
        let dropped = [(); 16].map(|()| Tensor::<1>::full([5], -1., device));
        drop(dropped);
        let loaded = weights.tensor::<1>("a.bias").unwrap();
        let sum = values(loaded.clone() + before.clone());
        assert_eq!(values(loaded), numbers(5, 1.1));
        assert_eq!(values(before), [round as f32 * 2.; 5]);
        assert_eq!(sum[0], round as f32 * 2. - 7.);
    }
}

#[test]
fn tensors_lie_in_burns_memory_among_burns_own() {
    let Some(loader) = loader() else { return };
    let folder = tempfile::tempdir().unwrap();
    let weights = loader.open(model(&folder)).unwrap();
    check(&weights, loader.device());
}

#[test]
fn a_device_of_the_programs_own_is_shared_too() {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let Some(adapter) = adapters.into_iter().next() else {
        println!("skipped: no adapter is here");
        return;
    };
    let (device, queue) = open_device(&adapter).unwrap();
    let loader = Loader::with_setup(WgpuSetup {
        backend: adapter.get_info().backend,
        instance,
        adapter,
        device,
        queue,
    });
    let loader = loader.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let weights = loader.open(model(&folder)).unwrap();
    check(&weights, loader.device());
}

fn linear(device: &Device) -> Linear {
    let config = LinearConfig::new(3, 5).with_layout(LinearLayout::Col);
    config.init(device)
}

#[test]
fn a_module_loads_as_burns_own_store_loads_it() {
    let Some(loader) = loader() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let weights = loader.open(&path).unwrap();
    let ours = weights.fill(linear(loader.device()), |path| format!("a.{path}"));
    let ours = ours.unwrap();
    let mut burns = linear(loader.device());
    let mut store = SafetensorsStore::from_file(&path)
        .with_key_remapping("^a\\.", "")
        .allow_partial(true);
    burns.load_from(&mut store).unwrap();
    assert_eq!(ours.weight.dims(), burns.weight.dims());
    assert_eq!(values(ours.weight.val()), values(burns.weight.val()));
    let input = Tensor::<2>::from_data([[0.1, 0.2, 0.3], [4., 5., 6.]], loader.device());
    let (ours, burns) = (ours.forward(input.clone()), burns.forward(input));
    assert_eq!(values(ours), values(burns));
}

#[test]
fn errors_name_the_tensor_and_what_is_wrong() {
    let Some(loader) = loader() else { return };
    let folder = tempfile::tempdir().unwrap();
    let weights = loader.open(model(&folder)).unwrap();
    let told = |name: &str| weights.tensor::<1>(name).unwrap_err().to_string();
    assert_eq!(told("b"), "the model has no tensor b");
    assert!(told("a.weight").contains("[5, 3] in the file, and one of 1 dimensions"));
    assert!(told("integers").contains("integers is I64"));

    let fill = |module: Linear, bias: &str| {
        let name_of = |path: &str| match path {
            "bias" => bias.to_owned(),
            _ => format!("a.{path}"),
        };
        weights.fill(module, name_of).unwrap_err()
    };
    let error = fill(linear(loader.device()), "f16");
    let Error::Shape {
        name,
        found,
        expected,
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((name.as_str(), &found[..]), ("f16", &[3][..]));
    assert_eq!(expected, "[5]");
    assert!(matches!(fill(linear(loader.device()), "b"), Error::Missing { name } if name == "b"));
    let none = loader.open("/nowhere").unwrap_err().to_string();
    assert!(none.contains("/nowhere"), "{none}");
}
