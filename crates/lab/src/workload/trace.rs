//! Recorded requests: when each arrived and how long it was.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{Arrivals, LengthDistribution};

const NS_PER_S: f64 = 1e9;
/// About 292 years: no time of a trace is later.
const LATEST_S: f64 = i64::MAX as f64 / NS_PER_S;

/// A recorded workload: a CSV file of two columns, arrival in seconds and length, in the order of arrival. Its first
/// line may be titles; lines that begin with `#` are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// When each request arrived, in nanoseconds, ascending.
    pub arrivals_ns: Vec<u64>,
    /// How long each request was.
    pub lengths: Vec<u32>,
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read '{}': {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A line is not what it should be.
    #[error("'{}' line {line}: found {found}, expected {expected}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number from 1.
        line: u64,
        /// What is there.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
    /// The file holds no request.
    #[error("'{}' holds no request; expected lines of arrival in seconds and length, as '0.25,17'", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// When the file cannot be read, holds no request, or a line is not what it should be: the error names the line.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let content = std::fs::read(path).map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
        let trace = Self::parse(path, &String::from_utf8_lossy(&content))?;
        if trace.arrivals_ns.is_empty() {
            return Err(TraceError::Empty { path: path.to_owned() });
        }
        Ok(trace)
    }

    /// Exactly these arrivals.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals::At(self.arrivals_ns.clone())
    }

    /// Exactly these lengths in turn.
    pub fn lengths(&self) -> LengthDistribution {
        LengthDistribution::Recorded(self.lengths.clone())
    }

    fn parse(path: &Path, content: &str) -> Result<Self, TraceError> {
        let numbered = (1..).zip(content.lines().map(str::trim));
        let mut lines = numbered.filter(|(_, text)| !text.is_empty() && !text.starts_with('#')).peekable();
        lines.next_if(|(_, text)| fields(text).all(|field| field.parse::<f64>().is_err()));
        let mut trace = Self { arrivals_ns: Vec::new(), lengths: Vec::new() };
        for (line, text) in lines {
            trace.take(text).map_err(|(found, expected)| TraceError::Line {
                path: path.to_owned(),
                line,
                found,
                expected,
            })?;
        }
        Ok(trace)
    }

    /// Takes a line, or says what is there and what should be there.
    fn take(&mut self, text: &str) -> Result<(), (String, &'static str)> {
        let quoted = |field: &str| format!("'{field}'");
        let fields: Vec<&str> = fields(text).collect();
        let [arrival, length] = fields[..] else {
            return Err((quoted(text), "arrival in seconds and length, as '0.25,17'"));
        };
        let seconds: Option<f64> = arrival.parse().ok().filter(|seconds| (0.0..LATEST_S).contains(seconds));
        let seconds = seconds.ok_or_else(|| (quoted(arrival), "an arrival in seconds, zero or more"))?;
        let length: Option<u32> = length.parse().ok().filter(|length| *length > 0);
        let length = length.ok_or_else(|| (quoted(fields[1]), "a length, a whole number of at least 1"))?;
        let arrival_ns = (seconds * NS_PER_S).round() as u64;
        if self.arrivals_ns.last().is_some_and(|last| arrival_ns < *last) {
            return Err((quoted(arrival), "an arrival no earlier than the one before"));
        }
        self.arrivals_ns.push(arrival_ns);
        self.lengths.push(length);
        Ok(())
    }
}

fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|field| field.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(content: &str) -> Result<Trace, String> {
        Trace::parse(Path::new("trace.csv"), content).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_arrivals_in_seconds_and_lengths() {
        let expected = Trace { arrivals_ns: vec![0, 250_000_000, 250_000_000], lengths: vec![5, 17, 3] };
        assert_eq!(parse("0,5\n0.25,17\n0.25,3\n").as_ref(), Ok(&expected));
        assert_eq!(parse("# a comment\narrival_s,length\n 0, 5\n\"0.25\",\"17\"\r\n\n0.25,3").as_ref(), Ok(&expected));
        assert_eq!(expected.arrivals(), Arrivals::At(vec![0, 250_000_000, 250_000_000]));
        assert_eq!(expected.lengths(), LengthDistribution::Recorded(vec![5, 17, 3]));
    }

    #[test]
    fn an_error_names_the_line_and_what_was_expected() {
        let cases = [
            ("0,5\nlater,5\n", "'trace.csv' line 2: found 'later', expected an arrival in seconds, zero or more"),
            ("0,5\n\n-1,5\n", "'trace.csv' line 3: found '-1', expected an arrival in seconds, zero or more"),
            ("NaN,5\n", "'trace.csv' line 1: found 'NaN', expected an arrival in seconds, zero or more"),
            ("1e300,5\n", "'trace.csv' line 1: found '1e300', expected an arrival in seconds, zero or more"),
            ("s,n\n0,0\n", "'trace.csv' line 2: found '0', expected a length, a whole number of at least 1"),
            ("0,1.5\n", "'trace.csv' line 1: found '1.5', expected a length, a whole number of at least 1"),
            ("1,1\n0.5,1\n", "'trace.csv' line 2: found '0.5', expected an arrival no earlier than the one before"),
            ("0,1\n0.5\n", "'trace.csv' line 2: found '0.5', expected arrival in seconds and length, as '0.25,17'"),
            ("0,1,2\n", "'trace.csv' line 1: found '0,1,2', expected arrival in seconds and length, as '0.25,17'"),
        ];
        for (content, expected) in cases {
            assert_eq!(parse(content), Err(expected.to_owned()), "{content:?}");
        }
    }

    #[test]
    fn a_file_without_requests_or_of_other_bytes_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.csv");
        let missing = Trace::read(&path).expect_err("there is no file");
        assert!(matches!(missing, TraceError::Read { .. }), "{missing}");
        std::fs::write(&path, "arrival,length\n").expect("a file");
        let empty = Trace::read(&path).expect_err("there is no request");
        assert!(matches!(empty, TraceError::Empty { .. }), "{empty}");
        std::fs::write(&path, b"0,1\n\xff,1\n").expect("a file");
        let garbage = Trace::read(&path).expect_err("the second line is no text");
        assert!(matches!(garbage, TraceError::Line { line: 2, .. }), "{garbage}");
    }
}
