//! Trace files, written by a separate thread, so that requests never wait for a disk.

use std::{
    fs::{self, File},
    io, iter,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, Builder},
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::error;

use super::stats::TraceStats;

/// Maximum number of traces waiting to be written.
const MOST_WAITING: usize = 1024;

/// Maximum bytes of traces waiting to be written.
const MOST_WAITING_BYTES: usize = 16 << 20;

/// Maximum number of numbered files. Then the oldest ones are overwritten, so that clients cannot fill the directory.
const MOST_FILES: u64 = 1_000;

/// How long traces are collected before they are written together. Waking the thread for each trace costs more than
/// writing it.
const GATHERING: Duration = Duration::from_millis(10);

/// How long the final writes may take at shutdown.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// A message to the thread.
enum Order {
    /// Write the objects of one trace.
    Write { objects: Vec<u8>, log_frequency: u32 },
    /// Reply when everything before is written.
    Flush(Sender<()>),
}

/// The sender to the writing thread.
#[derive(Debug)]
pub(super) struct TraceFiles {
    orders: Sender<Order>,
    /// Bytes waiting to be written.
    waiting: Arc<AtomicUsize>,
    stats: Arc<TraceStats>,
    /// How long a flush waits for room in the queue, and then for the writer.
    patience: Duration,
}

impl TraceFiles {
    /// Starts the thread. A file is created only when there is a trace for it.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(path: PathBuf, stats: Arc<TraceStats>) -> io::Result<Self> {
        let (orders, received) = bounded(MOST_WAITING);
        let mut writer = Writer { path, whole: None, numbered: None, next_number: 0, has_failed: false };
        let waiting = Arc::new(AtomicUsize::new(0));
        let (counted, written) = (Arc::clone(&stats), Arc::clone(&waiting));
        let thread = Builder::new().name("paternoster-traces".to_owned());
        thread.spawn(move || writer.run(&received, &written, &counted))?;
        Ok(Self { orders, waiting, stats, patience: LAST_WRITES })
    }

    /// Queues a trace; drops it if too many are waiting.
    pub(super) fn write(&self, objects: Vec<u8>, log_frequency: u32) {
        let bytes = objects.len();
        let room = |waiting: usize| waiting.checked_add(bytes).filter(|&waiting| waiting <= MOST_WAITING_BYTES);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return self.lose();
        }
        if self.orders.try_send(Order::Write { objects, log_frequency }).is_err() {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.lose();
        }
    }

    /// Counts a trace that is not written.
    pub(super) fn lose(&self) {
        self.stats.dropped(1);
    }

    /// Returns once all previous traces are written or have failed, or gives up if the disk hangs.
    pub(super) fn flush(&self) {
        let (done, is_done) = bounded(1);
        if self.orders.send_timeout(Order::Flush(done), self.patience).is_ok() {
            let _ = is_done.recv_timeout(self.patience);
        }
    }
}

impl Drop for TraceFiles {
    fn drop(&mut self) {
        // The thread ends when its channel is closed. If the disk hangs, the thread is abandoned.
        self.flush();
    }
}

/// The open files.
struct Writer {
    path: PathBuf,
    /// The file of all traces.
    whole: Option<List>,
    /// The current numbered file.
    numbered: Option<List>,
    next_number: u64,
    /// Whether a failure has been logged.
    has_failed: bool,
}

impl Writer {
    fn run(&mut self, orders: &Receiver<Order>, waiting: &AtomicUsize, stats: &TraceStats) {
        while let Ok(first) = orders.recv() {
            if matches!(first, Order::Write { .. }) {
                #[expect(clippy::disallowed_methods, reason = "what comes meanwhile is written by the same call")]
                thread::sleep(GATHERING);
            }
            let mut bytes = 0;
            let mut flushed = Vec::new();
            let mut lost = 0;
            let mut failure = None;
            for order in iter::once(first).chain(orders.try_iter().take(MOST_WAITING)) {
                match order {
                    Order::Write { objects, log_frequency } => {
                        bytes += objects.len();
                        if let Err((traces, error)) = self.add(&objects, log_frequency) {
                            lost += traces;
                            failure = Some(error);
                        }
                    }
                    Order::Flush(done) => flushed.push(done),
                }
            }
            for list in [&mut self.whole, &mut self.numbered].into_iter().flatten() {
                if let Err((traces, error)) = list.write() {
                    lost += traces;
                    failure = Some(error);
                }
            }
            if bytes > 0 {
                waiting.fetch_sub(bytes, Ordering::Relaxed);
                stats.dropped(lost);
                let had_failed = std::mem::replace(&mut self.has_failed, failure.is_some());
                if let Some(error) = failure.filter(|_| !had_failed) {
                    error!(file = %self.path.display(), %error, "cannot write traces");
                }
            }
            for done in flushed {
                // The receiver may have stopped waiting.
                let _ = done.send(());
            }
        }
    }

    /// Adds a trace to its file. A file that becomes full is written and closed.
    fn add(&mut self, objects: &[u8], log_frequency: u32) -> Result<(), Lost> {
        let lost = |error| (1, error);
        if log_frequency == 0 {
            opened(&mut self.whole, &self.path).map_err(lost)?.add(objects);
            return Ok(());
        }
        if self.numbered.is_none() {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{}", self.next_number % MOST_FILES));
            opened(&mut self.numbered, Path::new(&name)).map_err(lost)?;
            self.next_number += 1;
        }
        if let Some(list) = &mut self.numbered {
            list.add(objects);
            if list.traces + list.pending_traces >= u64::from(log_frequency) {
                list.write()?;
                self.numbered = None;
            }
        }
        Ok(())
    }
}

fn opened<'a>(list: &'a mut Option<List>, path: &Path) -> io::Result<&'a mut List> {
    match list {
        Some(list) => Ok(list),
        None => Ok(list.insert(List::create(path)?)),
    }
}

/// Number of traces that were not written, and the error.
type Lost = (u64, io::Error);

/// What a list needs of its file.
trait ListFile {
    /// Writes all of these bytes at a position.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Cuts the file off.
    fn cut(&self, len_bytes: u64) -> io::Result<()>;
}

impl ListFile for File {
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.write_all_at(bytes, position)
    }

    fn cut(&self, len_bytes: u64) -> io::Result<()> {
        self.set_len(len_bytes)
    }
}

/// A file with one JSON list, which is complete after every write, even one that fails.
struct List<F = File> {
    file: F,
    /// Position of the next object; the end of the list follows it.
    end: u64,
    traces: u64,
    /// Objects to be written.
    pending: Vec<u8>,
    pending_traces: u64,
}

const LIST_START: &[u8] = b"[\n";
const LIST_END: &[u8] = b"\n]\n";

impl List {
    /// Creates a file with an empty list. If the disk has no room for it, there is no file.
    fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        let is_regular = file.metadata()?.is_file();
        Self::over(file).inspect_err(|_| {
            if is_regular {
                // Fails if someone else has removed it.
                let _ = fs::remove_file(path);
            }
        })
    }
}

impl<F: ListFile> List<F> {
    fn over(file: F) -> io::Result<Self> {
        file.write_at(&[LIST_START, LIST_END].concat(), 0)?;
        let end = LIST_START.len() as u64;
        Ok(Self { file, end, traces: 0, pending: Vec::new(), pending_traces: 0 })
    }

    /// Adds the objects of a trace.
    fn add(&mut self, objects: &[u8]) {
        let is_first = self.traces + self.pending_traces == 0;
        self.pending.extend_from_slice(if is_first { b"" } else { b",\n" });
        self.pending.extend_from_slice(objects);
        self.pending_traces += 1;
    }

    /// Writes the added objects. If that fails they are lost, and the next objects take their place in the file.
    fn write(&mut self) -> Result<(), Lost> {
        let (mut pending, traces) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.pending_traces));
        if traces == 0 {
            return Ok(());
        }
        let bytes = pending.len() as u64;
        pending.extend_from_slice(LIST_END);
        if let Err(error) = self.file.write_at(&pending, self.end) {
            // A full disk may have taken a part of it. The end of the list was in this place before, so there is room.
            let restored = self.file.write_at(LIST_END, self.end);
            let restored = restored.and_then(|()| self.file.cut(self.end + LIST_END.len() as u64));
            return Err((traces, restored.err().unwrap_or(error)));
        }
        self.end += bytes;
        self.traces += traces;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// A file on a disk with room for some bytes, which takes what fits, as Linux does.
    struct OnDisk {
        content: Mutex<Vec<u8>>,
        room: Mutex<usize>,
    }

    impl OnDisk {
        fn with_room(room: usize) -> Self {
            Self { content: Mutex::default(), room: Mutex::new(room) }
        }

        fn text(&self) -> String {
            String::from_utf8(self.content.lock().clone()).expect("it is text")
        }
    }

    impl ListFile for &OnDisk {
        fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
            let (mut content, start) = (self.content.lock(), position as usize);
            let fits = bytes.len().min((*self.room.lock()).saturating_sub(start));
            let len_bytes = content.len().max(start + fits);
            content.resize(len_bytes, 0);
            content[start..start + fits].copy_from_slice(&bytes[..fits]);
            if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }

        fn cut(&self, len_bytes: u64) -> io::Result<()> {
            self.content.lock().truncate(len_bytes as usize);
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_leaves_a_complete_list() {
        for room in 0..40 {
            let disk = OnDisk::with_room(room);
            let Ok(mut list) = List::over(&disk) else {
                assert!(room < "[\n\n]\n".len(), "there is room for an empty list");
                continue;
            };
            let mut written = 0;
            for number in 0..4 {
                list.add(format!("{{\"id\":{number}}}").as_bytes());
                written += usize::from(list.write().is_ok());
                let read: Vec<serde_json::Value> = serde_json::from_str(&disk.text())
                    .unwrap_or_else(|error| panic!("{room} bytes, {number}: {error}: {}", disk.text()));
                assert_eq!(read.len(), written);
            }
            *disk.room.lock() = 100;
            list.add(b"{}");
            list.write().map_err(|(_, error)| error).expect("there is room again");
            let read: Vec<serde_json::Value> = serde_json::from_str(&disk.text()).expect("it is JSON");
            assert_eq!(read.len(), written + 1, "what comes later takes the place of what was lost");
        }
    }

    /// If a flush waited for such a disk, this test would not end.
    #[test]
    fn a_disk_that_hangs_is_given_up() {
        let (orders, received) = bounded(1);
        let (waiting, stats) = (Arc::default(), Arc::new(TraceStats::default()));
        let files = TraceFiles { orders, waiting, stats: Arc::clone(&stats), patience: Duration::from_millis(1) };
        files.flush();
        assert!(matches!(received.try_recv(), Ok(Order::Flush(_))), "there was room to ask, and no answer");
        files.write(b"{}".to_vec(), 0);
        files.flush();
        drop(files);
        assert!(matches!(received.try_recv(), Ok(Order::Write { .. })), "the queue was full");
        assert!(received.recv().is_err(), "nothing follows it");
        assert_eq!(stats.dropped_traces(), 0, "what waits is not counted as lost");
    }

    #[test]
    fn numbered_files_are_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        let mut writer = Writer { path, whole: None, numbered: None, next_number: 0, has_failed: false };
        for number in 0..MOST_FILES + 2 {
            writer.add(format!("{number}").as_bytes(), 1).map_err(|(_, error)| error).expect("it is written");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count() as u64, MOST_FILES);
        let read = |number: u64| {
            let text = fs::read_to_string(folder.path().join(format!("trace.json.{number}"))).expect("the file");
            serde_json::from_str::<Vec<u64>>(&text).expect("it is JSON")
        };
        assert_eq!([read(0), read(1), read(2)], [vec![MOST_FILES], vec![MOST_FILES + 1], vec![2]]);
    }
}
