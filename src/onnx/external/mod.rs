//! External data: tensors whose elements lie in other files than the graph's.
//!
//! ONNX names such a file by a location relative to the model. Here it is opened, confined to the model's version, and
//! its size is checked against the tensor's, so that an engine never resolves a location by itself: it would look in
//! the process's working directory, and follow any path.

mod confined;
mod entry;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use self::entry::Entry;
pub(super) use self::entry::is_external;
use super::{
    Error, Model,
    pb::{self, tensor_proto::DataLocation},
    port::datatype_of,
    tensors::{self, Place},
};
use crate::model::DataType;

/// Tensors up to this size are put into the graph: shape inference looks at their elements.
const SMALL_BYTES: u64 = 64 << 10;
/// All that is put into the graph, which must stay a protobuf message.
const INLINE_MAX_BYTES: u64 = 1 << 30;
/// Tensors may share bytes of a file, but together they take at most this many times the files.
const SHARING_MAX: u64 = 16;
/// Most files of a model: each is open until the model is.
const FILES_MAX: usize = 512;
/// What a tensor that stays outside has for a location: an engine that opened it would find nothing.
const PLACEHOLDER: &str = "(given beside the graph)";

/// Where the external data of a model may lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExternalFiles {
    /// Nowhere: a model that names a file is refused.
    #[default]
    None,
    /// On disk.
    Beside {
        /// What locations are relative to: the directory of the model's file.
        directory: PathBuf,
        /// What must hold every file once links are followed: the directory of the model's version.
        within: PathBuf,
    },
    /// In memory, by location; nothing is read from disk.
    Given(Arc<BTreeMap<String, Bytes>>),
}

impl ExternalFiles {
    /// The files beside a model's file, confined to its directory.
    pub fn beside(program: &Path) -> Self {
        let directory = match program.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Self::Beside { within: directory.clone(), directory }
    }

    /// Opens a file by its plain location.
    fn open(&self, location: &str) -> Result<Source, String> {
        match self {
            Self::None => Err("this model may not use other files".to_owned()),
            Self::Beside { directory, within } => {
                let file = confined::open(directory, within, location)?;
                let length = file.metadata().map_err(|fault| fault.to_string())?.len();
                Ok(Source::File(Arc::new(file), length))
            }
            Self::Given(files) => {
                let file = files.get(location).cloned().map(Source::Memory);
                file.ok_or_else(|| {
                    let names: Vec<&str> = files.keys().map(String::as_str).collect();
                    format!("the load request did not bring it; beside the model it brought {names:?}")
                })
            }
        }
    }
}

/// An opened file.
#[derive(Clone, Debug)]
enum Source {
    File(Arc<File>, u64),
    Memory(Bytes),
}

impl Source {
    fn len_bytes(&self) -> u64 {
        match self {
            Self::File(_, length) => *length,
            Self::Memory(bytes) => bytes.len() as u64,
        }
    }
}

/// A weight that stays outside of the graph.
#[derive(Clone, Debug)]
pub struct ExternalWeight {
    /// The tensor's name.
    pub name: String,
    /// Element type; never BYTES.
    pub datatype: DataType,
    /// Its shape.
    pub dims: Vec<i64>,
    /// Length of its elements.
    pub len_bytes: usize,
    location: String,
    source: Source,
    offset: u64,
}

impl ExternalWeight {
    /// Reads the elements: little-endian, row-major, `len_bytes` in all.
    ///
    /// # Errors
    /// When the file cannot be read or has become shorter; the text names it.
    pub fn read_into(&self, memory: &mut [u8]) -> Result<(), Error> {
        read(&self.source, self.offset, memory).map_err(|source| Error::Read { file: self.location.clone(), source })
    }
}

fn read(source: &Source, offset: u64, memory: &mut [u8]) -> io::Result<()> {
    match source {
        Source::File(file, _) => file.read_exact_at(memory, offset),
        Source::Memory(bytes) => {
            // Bounds were checked when the tensor was found.
            let part =
                usize::try_from(offset).ok().and_then(|start| bytes.get(start..start.checked_add(memory.len())?));
            memory.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
    }
}

/// What became of a model's external tensors.
pub(super) struct Gathered {
    /// The model has none.
    pub is_unchanged: bool,
    /// Those that stay outside of the graph, in its order.
    pub weights: Vec<ExternalWeight>,
}

/// Puts small tensors, and those that are no weights of the model's own graph, into the graph. The others are checked
/// and returned.
///
/// # Errors
/// When a file is missing, lies elsewhere or is too short, or an entry does not fit its tensor; with tensor and file.
pub(super) fn gather(model: &mut Model, files: &ExternalFiles) -> Result<Gathered, String> {
    let mut gathering = Gathering { files, sources: HashMap::new(), inline: 0, total: 0, held: 0, weights: Vec::new() };
    tensors::visit_mut(&mut model.0, &mut |place, tensor| gathering.take(place, tensor))?;
    Ok(Gathered { is_unchanged: gathering.sources.is_empty(), weights: gathering.weights })
}

struct Gathering<'a> {
    files: &'a ExternalFiles,
    /// By plain location.
    sources: HashMap<String, Source>,
    /// Bytes that were put into the graph.
    inline: u64,
    /// Bytes of all external tensors.
    total: u64,
    /// Bytes of all files.
    held: u64,
    weights: Vec<ExternalWeight>,
}

impl Gathering<'_> {
    fn take(&mut self, place: Place, tensor: &mut pb::TensorProto) -> Result<(), String> {
        if !is_external(tensor) {
            return Ok(());
        }
        let Entry { location, offset, len_bytes } = Entry::of(tensor)?;
        let name = tensor.name().to_owned();
        let refuse = |reason: String| format!("tensor '{name}': cannot use the file '{location}': {reason}");
        let source = self.source(&location).map_err(refuse)?;
        let has = source.len_bytes();
        if offset.checked_add(len_bytes).is_none_or(|end| end > has) {
            return Err(refuse(format!("it has {has} bytes, expected {len_bytes} from byte {offset} on")));
        }
        // Many tensors over the same bytes of a file would take any amount of memory.
        self.total = self.total.saturating_add(len_bytes);
        if self.total > self.held.saturating_mul(SHARING_MAX) {
            let (total, held) = (self.total, self.held);
            return Err(format!(
                "its tensors take {total} bytes out of files of {held} bytes, more than {SHARING_MAX} times as much"
            ));
        }
        let datatype = pb::tensor_proto::DataType::try_from(tensor.data_type()).ok().and_then(datatype_of);
        let length = usize::try_from(len_bytes).map_err(|_| refuse("it is too large for this machine".to_owned()))?;
        match datatype {
            Some(datatype) if place == Place::Weight && len_bytes > SMALL_BYTES => {
                tensor.external_data = vec![pb::StringStringEntryProto {
                    key: Some("location".to_owned()),
                    value: Some(PLACEHOLDER.to_owned()),
                }];
                let dims = tensor.dims.clone();
                self.weights.push(ExternalWeight { name, datatype, dims, len_bytes: length, location, source, offset });
            }
            _ => {
                self.inline += len_bytes;
                if self.inline > INLINE_MAX_BYTES {
                    return Err(refuse(format!(
                        "constants and weights of bodies take more than {INLINE_MAX_BYTES} bytes"
                    )));
                }
                let mut data = vec![0; length];
                read(&source, offset, &mut data).map_err(|fault| refuse(fault.to_string()))?;
                tensor.raw_data = Some(data.into());
                tensor.external_data.clear();
                tensor.data_location = None;
            }
        }
        Ok(())
    }

    /// The file of a location, opened once, in whatever way it is written.
    fn source(&mut self, location: &str) -> Result<Source, String> {
        let plain: PathBuf = Path::new(location).components().filter(|part| *part != Component::CurDir).collect();
        let plain = plain.to_string_lossy().into_owned();
        if let Some(source) = self.sources.get(&plain) {
            return Ok(source.clone());
        }
        if self.sources.len() == FILES_MAX {
            return Err(format!("the model has more than {FILES_MAX} files of weights: merge them"));
        }
        let source = self.files.open(&plain)?;
        self.held = self.held.saturating_add(source.len_bytes());
        self.sources.insert(plain, source.clone());
        Ok(source)
    }
}
