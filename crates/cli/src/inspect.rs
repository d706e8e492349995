//! `transload inspect`

use std::path::Path;

use transload::ByteSize;
use transload_tensors::{Format, Model, TensorInfo, Value};

use crate::failure::Failure;
use crate::json;
use crate::output::{Output, counted};

pub(crate) fn run(path: &Path, output: &mut Output) -> Result<(), Failure> {
    let model = Model::open(path)?;
    if output.is_json() {
        return output.json(&document(&model));
    }
    let metadata = model.metadata().iter();
    let metadata = metadata.map(|(key, value)| vec![cut(key), brief(value)]);
    let metadata: Vec<_> = metadata.collect();
    if !metadata.is_empty() {
        output.table(&["METADATA", "VALUE"], metadata)?;
        output.line("")?;
    }
    let several = model.files().len() > 1;
    let row = |tensor: &TensorInfo| {
        let mut row = vec![
            tensor.name.clone(),
            tensor.dtype.to_string(),
            shape(&tensor.shape),
            ByteSize(tensor.len_bytes).to_string(),
        ];
        let path = model.files()[tensor.file].path();
        let name = path.file_name().unwrap_or(path.as_os_str());
        row.extend(several.then(|| name.to_string_lossy().into_owned()));
        row
    };
    let mut header = vec!["TENSOR", "DTYPE", "SHAPE", "SIZE"];
    header.extend(several.then_some("FILE"));
    output.table(&header, model.tensors().iter().map(row).collect())?;
    output.line("")?;
    let mut formats = model.files().iter().map(|file| format(file.format));
    output.line(format_args!(
        "{} of {} in {} of {}",
        counted(model.tensors().len(), "tensor"),
        ByteSize(model.len_bytes()),
        counted(model.files().len(), "file"),
        formats.next_back().unwrap_or_default()
    ))
}

/// A shape in the field's usual form, `[384, 512]`.
fn shape(sizes: &[u64]) -> String {
    let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

fn format(format: Format) -> &'static str {
    match format {
        Format::Safetensors => "safetensors",
        Format::Gguf => "gguf",
        _ => "unknown",
    }
}

fn document(model: &Model) -> json::Model {
    let files = model.files().iter().map(|of| json::ModelFile {
        path: of.path().display().to_string(),
        format: format(of.format),
        bytes: of.len_bytes(),
    });
    let tensors = model.tensors().iter().map(|of| json::Tensor {
        name: of.name.clone(),
        dtype: of.dtype.to_string(),
        shape: of.shape.clone(),
        bytes: of.len_bytes,
        file: of.file,
        offset: of.offset,
    });
    let metadata = model.metadata().iter();
    json::Model {
        files: files.collect(),
        bytes: model.len_bytes(),
        metadata: metadata
            .map(|(key, value)| (key.clone(), told(value)))
            .collect(),
        tensors: tensors.collect(),
    }
}

/// A value on one line. Vocabularies have 100,000 words, and templates of a chat pages of text.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(values) => counted(values.len(), "value"),
        Value::String(text) => cut(text),
        value => told(value).to_string(),
    }
}

/// The beginning of a text.
fn cut(text: &str) -> String {
    const MOST_CHARS: usize = 60;
    let mut rest = text.chars();
    let begin: String = rest.by_ref().take(MOST_CHARS).collect();
    match rest.next() {
        Some(_) => begin + "…",
        None => begin,
    }
}

fn told(value: &Value) -> serde_json::Value {
    match value {
        Value::String(text) => text.as_str().into(),
        Value::Unsigned(number) => (*number).into(),
        Value::Signed(number) => (*number).into(),
        // JSON has no NaN and no infinity: null.
        Value::Float(number) => (*number).into(),
        Value::Bool(is) => (*is).into(),
        Value::Array(values) => values.iter().map(told).collect(),
        _ => serde_json::Value::Null,
    }
}
