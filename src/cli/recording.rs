//! Records a timeline: its flags, and the file that is written at exit.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use paternoster_observe::timeline::Timeline;

/// Most events that can be kept, about 400 MB.
const MOST_EVENTS: i64 = 10_000_000;

/// How a timeline is recorded.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Timeline")]
pub struct RecordArgs {
    /// Record requests and tasks, and write them to this file at exit, in the Chrome trace format; a server also
    /// returns them at GET /v2/timeline
    #[arg(id = "timeline-file", long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Number of events to keep, the latest ones; each takes about 40 bytes
    #[arg(id = "timeline-events", long, value_name = "N", default_value_t = 100_000, requires = "timeline-file")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MOST_EVENTS))]
    pub events: u32,
}

/// A timeline and its file; both absent unless requested.
#[derive(Clone, Debug, Default)]
pub(super) struct TimelineRecording {
    /// Off if there is no file.
    pub(super) timeline: Arc<Timeline>,
    file: Option<PathBuf>,
}

/// The timeline's file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("--timeline-file: cannot write '{}': {error}", .file.display())]
pub struct UnwritableTimeline {
    file: PathBuf,
    error: io::Error,
}

impl TimelineRecording {
    /// Starts recording if a file was given, and checks that it can be written without changing its content.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn start(args: &RecordArgs) -> Result<Self, UnwritableTimeline> {
        let Some(file) = args.file.clone() else { return Ok(Self::default()) };
        if let Err(error) = OpenOptions::new().create(true).append(true).open(&file) {
            return Err(UnwritableTimeline { file, error });
        }
        Ok(Self { timeline: Arc::new(Timeline::on(args.events as usize)), file: Some(file) })
    }

    /// Writes the recording, if there is one, and returns the file.
    ///
    /// # Errors
    /// Fails if the file can no longer be written.
    pub(super) fn finish(&self) -> Result<Option<&Path>, UnwritableTimeline> {
        let (Some(file), Some(recording)) = (&self.file, self.timeline.recording()) else { return Ok(None) };
        let written = write(file, |to| recording.picture().write_chrome(to));
        written.map(|()| Some(file.as_path())).map_err(|error| UnwritableTimeline { file: file.clone(), error })
    }
}

fn write(file: &Path, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut to = BufWriter::new(File::create(file)?);
    content(&mut to)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use paternoster_observe::timeline::Picture;
    use tempfile::TempDir;

    use super::*;

    fn recording(file: Option<PathBuf>) -> Result<TimelineRecording, UnwritableTimeline> {
        TimelineRecording::start(&RecordArgs { file, events: 10 })
    }

    #[test]
    fn without_a_file_nothing_is_recorded() {
        let recording = recording(None).expect("nothing to write");
        assert!(!recording.timeline.is_kept());
        assert!(matches!(recording.finish(), Ok(None)));
    }

    #[test]
    fn what_was_recorded_replaces_what_the_file_held() {
        let directory = TempDir::new().expect("a directory for the test");
        let file = directory.path().join("trace.json");
        fs::write(&file, "of an earlier run").expect("a file for the test");
        let recording = recording(Some(file.clone())).expect("a file that can be written");
        assert_eq!(fs::read(&file).expect("it is there"), b"of an earlier run", "kept until there is something new");

        recording.timeline.arrived(1_000, 1, 0, 1);
        recording.timeline.arrived(2_000, 2, 0, 1);
        assert_eq!(recording.finish().expect("it is written"), Some(file.as_path()));
        let picture = Picture::read_chrome(&fs::read(&file).expect("it is there")).expect("our own");
        let expected = recording.timeline.recording().expect("it is on").picture();
        assert_eq!(picture, expected, "no task ran, so that there are no arrows to be left out");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_at_once() {
        let error = recording(Some(PathBuf::from("/no/such/place/trace.json"))).expect_err("no such directory");
        assert!(
            error.to_string().starts_with("--timeline-file: cannot write '/no/such/place/trace.json': "),
            "{error}"
        );
    }
}
