//! What candle's own loader reads, this one reads too, bit for bit.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Error, Tensor, safetensors};
use candle_nn::VarBuilder;
use tempfile::TempDir;
use transload_candle::transload_tensors::transload::TransferManager;

const CPU: Device = Device::Cpu;

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

fn manager() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

/// A file with a tensor of each type, named like the type, and some of unusual shapes.
fn model(folder: &TempDir) -> PathBuf {
    let numbers = Tensor::arange(-700f64, 700., &CPU).unwrap() / 3.;
    let numbers = numbers.unwrap().reshape((25, 56)).unwrap();
    let of = |dtype: DType| numbers.abs().unwrap().to_dtype(dtype).unwrap();
    let integers = [DType::I64, DType::I32, DType::I16, DType::U32, DType::U8];
    let mut tensors: HashMap<String, Tensor> = FLOATS
        .into_iter()
        .chain(integers)
        .map(|dtype| (format!("a.{}", dtype.as_str()), of(dtype)))
        .collect();
    tensors.insert("a.signed".into(), numbers.clone());
    tensors.insert("a.scalar".into(), Tensor::new(1.5f32, &CPU).unwrap());
    let empty = Tensor::zeros((3, 0), DType::F32, &CPU).unwrap();
    tensors.insert("a.empty".into(), empty);
    // More than one thread reads this one.
    let large = Tensor::arange(0f32, 3e6, &CPU)
        .unwrap()
        .to_dtype(DType::F16);
    tensors.insert("a.large".into(), large.unwrap());
    let path = folder.path().join("model.safetensors");
    safetensors::save(&tensors, &path).unwrap();
    path
}

fn candles(path: &PathBuf, dtype: DType) -> VarBuilder<'static> {
    // SAFETY: nothing writes the file meanwhile.
    unsafe { VarBuilder::from_mmaped_safetensors(&[path], dtype, &CPU) }.unwrap()
}

/// The numbers as bits, widened without loss.
fn bits(tensor: &Tensor) -> Vec<u64> {
    let wide = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
    let wide = wide.to_vec1::<f64>().unwrap();
    wide.into_iter().map(f64::to_bits).collect()
}

#[test]
fn every_type_loads_as_candle_loads_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let all = safetensors::load(&path, &CPU).unwrap();
    for dtype in FLOATS.into_iter().chain([DType::I64, DType::U8]) {
        let ours = transload_candle::var_builder(&manager(), &path, dtype, &CPU).unwrap();
        let candles = candles(&path, dtype);
        for name in all.keys() {
            let (left, right) = (ours.get_unchecked(name), candles.get_unchecked(name));
            let (left, right) = (left.unwrap(), right.unwrap());
            assert_eq!(left.dtype(), dtype);
            assert_eq!(left.shape(), right.shape());
            assert!(bits(&left) == bits(&right), "{name} as {dtype:?}");
        }
    }
}

/// Numbers by hand: candle's own conversion of F8_E4M3 to F64 did not end within minutes (float8 0.7.0).
#[test]
fn floats_of_eight_bits_load_as_they_are_and_converted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, "F8_E4M3", &[0x00, 0x38, 0xc0, 0x7e, 0x01]);
    let load = |dtype| {
        let ours = transload_candle::var_builder(&manager(), &path, dtype, &CPU).unwrap();
        ours.get(5, "only").unwrap()
    };
    let wide = load(DType::F32).to_vec1::<f32>().unwrap();
    assert_eq!(wide, [0., 1., -2., 448., 0.001953125]);
    let same = HashMap::from([("only", load(DType::F8E4M3))]);
    let again = folder.path().join("again.safetensors");
    safetensors::save(&same, &again).unwrap();
    assert!(
        std::fs::read(again)
            .unwrap()
            .ends_with(&[0x00, 0x38, 0xc0, 0x7e, 0x01])
    );
}

/// Writes a file of one tensor.
fn write(path: &Path, dtype: &str, bytes: &[u8]) {
    let len = bytes.len();
    let header =
        format!(r#"{{"only":{{"dtype":"{dtype}","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length, header.as_bytes(), bytes].concat()).unwrap();
}

/// The error itself, where candle has added a backtrace.
fn plain(error: Error) -> Error {
    match error {
        Error::WithBacktrace { inner, .. } => plain(*inner),
        error => error,
    }
}

#[test]
fn wrong_names_and_shapes_are_candles_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let ours = transload_candle::var_builder(&manager(), &path, DType::F32, &CPU).unwrap();
    let candles = candles(&path, DType::F32);
    let (ours, candles) = (ours.pp("a"), candles.pp("a"));
    assert!(ours.contains_tensor("f32") && !ours.contains_tensor("b"));

    let (left, right) = (ours.get(1, "b"), candles.get(1, "b"));
    let (left, right) = (plain(left.unwrap_err()), plain(right.unwrap_err()));
    assert!(matches!(&left, Error::CannotFindTensor { path } if path == "a.b"));
    assert_eq!(left.to_string(), right.to_string());

    let (left, right) = (ours.get((56, 25), "f16"), candles.get((56, 25), "f16"));
    let (left, right) = (plain(left.unwrap_err()), plain(right.unwrap_err()));
    assert!(matches!(&left, Error::UnexpectedShape { got, .. } if got.dims() == [25, 56]));
    assert_eq!(left.to_string(), right.to_string());
}

#[test]
fn a_type_that_candle_lacks_is_an_error_that_names_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, "BOOL", &[0, 1]);
    let ours = transload_candle::var_builder(&manager(), &path, DType::F32, &CPU).unwrap();
    let told = ours.get(2, "only").unwrap_err().to_string();
    assert!(told.contains("only") && told.contains("BOOL"), "{told}");
}

#[test]
fn no_model_is_an_error_that_names_the_path() {
    let told = transload_candle::var_builder(&manager(), "/nowhere", DType::F32, &CPU);
    assert!(told.err().unwrap().to_string().contains("/nowhere"));
}
