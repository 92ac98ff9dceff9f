//! Figures for other programs.

use std::{io, path::Path};

/// Writes a table as CSV: the titles, then the rows, quoted where needed.
///
/// # Errors
/// When the file cannot be written, or a row has not as many fields as there are titles.
pub fn write_csv<Row, Field>(path: &Path, titles: &[&str], rows: impl IntoIterator<Item = Row>) -> Result<(), io::Error>
where
    Row: IntoIterator<Item = Field>,
    Field: AsRef<[u8]>,
{
    let mut writer = ::csv::Writer::from_path(path).map_err(io::Error::from)?;
    writer.write_record(titles).map_err(io::Error::from)?;
    for row in rows {
        writer.write_record(row).map_err(io::Error::from)?;
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_needed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.csv");
        write_csv(&path, &["policy", "p50_ms"], [["window: { a: 1, b: 2 }", "3.5"], ["lazy", "2"]])
            .expect("it is written");
        let written = std::fs::read_to_string(&path).expect("it is there");
        assert_eq!(written, "policy,p50_ms\n\"window: { a: 1, b: 2 }\",3.5\nlazy,2\n");
    }

    #[test]
    fn a_row_of_another_length_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let rows = [vec!["1", "2"], vec!["3"]];
        assert!(write_csv(&folder.path().join("out.csv"), &["a", "b"], rows).is_err());
    }
}
