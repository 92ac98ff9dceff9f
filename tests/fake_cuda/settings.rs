//! What the environment sets.

use std::{env, path::PathBuf, str::FromStr, sync::OnceLock};

pub struct Settings {
    pub devices: usize,
    /// Major and minor.
    pub capability: (i32, i32),
    pub memory_bytes: usize,
    pub prelude: PathBuf,
    pub cache: PathBuf,
}

pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let capability: String = number("FAKE_CUDA_CAPABILITY", "9.0".to_owned());
        let capability = capability.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        Settings {
            devices: number("FAKE_CUDA_DEVICES", 1),
            capability: capability.expect("FAKE_CUDA_CAPABILITY is two numbers, such as 9.0"),
            memory_bytes: number("FAKE_CUDA_MEMORY", 4 << 30),
            prelude: folder("FAKE_CUDA_PRELUDE", || {
                PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels").join("prelude")
            }),
            cache: folder("FAKE_CUDA_CACHE", || env::temp_dir().join("fake_cuda")),
        }
    })
}

fn number<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is '{text}', which cannot be read")),
        Err(_) => default,
    }
}

fn folder(name: &str, default: impl FnOnce() -> PathBuf) -> PathBuf {
    env::var_os(name).map_or_else(default, PathBuf::from)
}
