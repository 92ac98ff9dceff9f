//! Settings from the environment.

use std::{env, path::PathBuf, str::FromStr, sync::OnceLock};

pub(crate) struct Settings {
    pub devices: usize,
    /// Major and minor.
    pub capability: (i32, i32),
    /// Version of CUDA that the driver supports, such as 13000.
    pub driver: i32,
    pub memory_bytes: usize,
    pub cache: PathBuf,
}

pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let capability: String = number("FAKE_CUDA_CAPABILITY", "9.0".to_owned());
        let capability = capability.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        Settings {
            devices: number("FAKE_CUDA_DEVICES", 1),
            capability: capability.expect("FAKE_CUDA_CAPABILITY is two numbers, such as 9.0"),
            driver: number("FAKE_CUDA_DRIVER", 13000),
            memory_bytes: number("FAKE_CUDA_MEMORY", 4 << 30),
            cache: env::var_os("FAKE_CUDA_CACHE").map_or_else(|| env::temp_dir().join("fake_cuda"), PathBuf::from),
        }
    })
}

fn number<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is '{text}', which cannot be read")),
        Err(_) => default,
    }
}
