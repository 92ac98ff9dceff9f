//! Models and profiles on disk.

use std::{
    fs,
    path::{Path, PathBuf},
};

use paternoster::onnx::Model;
use tempfile::TempDir;

/// A model repository, and a directory for profiles.
pub struct Place {
    root: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a folder") }
    }

    pub fn repository(&self) -> PathBuf {
        self.root.path().join("models")
    }

    pub fn profiles(&self) -> PathBuf {
        self.root.path().join("profiles")
    }

    /// Files in the directory for profiles.
    pub fn kept(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.profiles()) else { return Vec::new() };
        entries.flatten().map(|entry| entry.path()).collect()
    }

    /// Adds a model.
    pub fn add(&self, name: &str, yaml: &str, model: &Model) {
        let directory = self.repository().join(name);
        fs::create_dir_all(directory.join("1")).expect("a folder");
        fs::write(directory.join("model.yaml"), yaml).expect("a file");
        model.write(&self.program(name)).expect("the folder takes the model");
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.repository().join(name).join("1").join("model.onnx")
    }
}

/// A file's text.
pub fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("it is there")
}
