//! External data: tensors whose elements are in separate files.
//!
//! ONNX identifies such a file by a location relative to the model. Here the file is opened, confined to the directory
//! of the model's version, and its size is checked against the tensor's. The engine therefore never resolves locations
//! itself; it would search the process's working directory and follow any path.

mod confined;
mod entry;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Component, Path, PathBuf},
    sync::{Arc, OnceLock},
};

use bytemuck::{Pod, Zeroable, allocation::try_zeroed_slice_box};
use bytes::Bytes;
use paternoster_model::DataType;

use self::entry::Entry;
pub(super) use self::entry::is_external;
use super::{
    Error, Model,
    pb::{self, tensor_proto::DataLocation},
    port::datatype_of,
    tensors::{self, Place},
};

/// Tensors up to this size are moved into the graph, because shape inference reads their elements.
const SMALL_BYTES: u64 = 64 << 10;
/// Maximum bytes moved into the graph, which must remain within the size of a protobuf message.
const INLINE_MAX_BYTES: u64 = 1 << 30;
/// Maximum total size of tensors relative to the files. Tensors may share bytes of a file, but without a limit a small
/// file could require any amount of memory.
const SHARING_MAX: u64 = 16;
/// Maximum number of files of a model. Each stays open as long as the model.
const FILES_MAX: usize = 512;
/// Location of tensors that stay outside of the graph. An engine that tried to open it would find nothing.
const PLACEHOLDER: &str = "(given beside the graph)";

/// Where the external data of a model may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExternalFiles {
    /// Nowhere: models with external data are rejected.
    #[default]
    None,
    /// On disk.
    Beside {
        /// Base directory of locations: that of the model's file.
        directory: PathBuf,
        /// Directory that must contain every file after resolving links: that of the model's version.
        within: PathBuf,
    },
    /// In memory, by location; nothing is read from disk.
    Given(Arc<BTreeMap<String, Bytes>>),
}

impl ExternalFiles {
    /// Returns the files beside a model's file, confined to its directory.
    pub fn beside(program: &Path) -> Self {
        let directory = match program.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Self::Beside { within: directory.clone(), directory }
    }

    /// Opens a file by its normalized location.
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
                    format!("the load request lacks it; beside the model it has {names:?}")
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
    /// Name of the tensor.
    pub name: String,
    /// Element type; never BYTES.
    pub datatype: DataType,
    /// Its shape.
    pub dims: Vec<i64>,
    /// Length of its elements in bytes.
    pub len_bytes: usize,
    location: String,
    source: Source,
    offset: u64,
    /// Once they were read.
    elements: Arc<OnceLock<Bytes>>,
}

/// A unit of aligned memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Elements that begin where a unit does.
struct Aligned {
    lines: Box<[Line]>,
    len_bytes: usize,
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len_bytes]
    }
}

impl ExternalWeight {
    /// Returns the elements, little-endian and row-major, `len_bytes` in total, aligned to 64 bytes. They are read
    /// once, into memory that all callers share until the model is dropped.
    ///
    /// # Errors
    /// If the file cannot be read or has been truncated, or if there is not enough memory. The error names the file.
    pub fn elements(&self) -> Result<Bytes, Error> {
        if let Some(elements) = self.elements.get() {
            return Ok(elements.clone());
        }
        let unreadable = |source| Error::Read { file: self.location.clone(), source };
        let lines = try_zeroed_slice_box::<Line>(self.len_bytes.div_ceil(size_of::<Line>()))
            .map_err(|()| unreadable(io::ErrorKind::OutOfMemory.into()))?;
        let mut elements = Aligned { lines, len_bytes: self.len_bytes };
        let memory = &mut bytemuck::cast_slice_mut(&mut elements.lines)[..self.len_bytes];
        read(&self.source, self.offset, memory).map_err(unreadable)?;
        Ok(self.elements.get_or_init(|| Bytes::from_owner(elements)).clone())
    }
}

fn read(source: &Source, offset: u64, memory: &mut [u8]) -> io::Result<()> {
    match source {
        Source::File(file, _) => file.read_exact_at(memory, offset),
        Source::Memory(bytes) => {
            // Bounds were checked when the tensor was gathered.
            let part =
                usize::try_from(offset).ok().and_then(|start| bytes.get(start..start.checked_add(memory.len())?));
            memory.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
    }
}

/// The external tensors of a model.
pub(super) struct Gathered {
    /// Whether the model has none, and so is unchanged.
    pub is_unchanged: bool,
    /// Weights that stay outside of the graph, in its order.
    pub weights: Vec<ExternalWeight>,
}

/// Moves small tensors, and those that are not weights of the main graph, into the graph. Checks the others and returns
/// them.
///
/// # Errors
/// If a file is missing, outside of the allowed directory or too short, or an entry does not fit its tensor. The
/// message names tensor and file.
pub(super) fn gather(model: &mut Model, files: &ExternalFiles) -> Result<Gathered, String> {
    let mut gathering = Gathering { files, sources: HashMap::new(), inline: 0, total: 0, held: 0, weights: Vec::new() };
    tensors::visit_mut(&mut model.0, &mut |place, tensor| gathering.take(place, tensor))?;
    Ok(Gathered { is_unchanged: gathering.sources.is_empty(), weights: gathering.weights })
}

/// Returns a location without the parts that name the same directory again.
fn normalized(location: &str) -> String {
    let plain: PathBuf = Path::new(location).components().filter(|part| *part != Component::CurDir).collect();
    plain.to_string_lossy().into_owned()
}

impl Model {
    /// Returns the files of the model's external data, by their paths from the directory of its own file.
    ///
    /// # Errors
    /// If an entry is incomplete or its path leaves that directory. The message names the tensor.
    pub fn external_files(mut self) -> Result<BTreeSet<String>, String> {
        let mut files = BTreeSet::new();
        tensors::visit_mut(&mut self.0, &mut |_, tensor| {
            if !is_external(tensor) {
                return Ok::<_, String>(());
            }
            let location = normalized(&Entry::of(tensor)?.location);
            let name = tensor.name();
            confined::check(&location)
                .map_err(|reason| format!("tensor '{name}': cannot use the file '{location}': {reason}"))?;
            files.insert(location);
            Ok(())
        })?;
        Ok(files)
    }
}

struct Gathering<'a> {
    files: &'a ExternalFiles,
    /// Opened files by normalized location.
    sources: HashMap<String, Source>,
    /// Bytes that were moved into the graph.
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
        // Many tensors over the same bytes of a file could require any amount of memory.
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
                let (dims, elements) = (tensor.dims.clone(), Arc::default());
                let len_bytes = length;
                self.weights.push(ExternalWeight {
                    name,
                    datatype,
                    dims,
                    len_bytes,
                    location,
                    source,
                    offset,
                    elements,
                });
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

    /// Returns the file at a location. Opens it only once, even if the location is written in different ways.
    fn source(&mut self, location: &str) -> Result<Source, String> {
        let plain = normalized(location);
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
