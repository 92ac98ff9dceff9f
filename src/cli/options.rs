//! From flags to the settings of each part.

use std::{path::PathBuf, time::Duration};

use super::flags::{Compression, ControlMode, GrpcArgs, LogArgs, ServeArgs};
use crate::{
    frontend::grpc::{
        CompressionLevel, ConnectionLimits, GrpcConfig, MessageLimits, RestrictedProtocol, RestrictionError, TlsConfig,
    },
    observe::LogOptions,
    repository,
};

/// The log's settings.
pub(super) fn log(args: &LogArgs) -> LogOptions {
    let LogArgs { verbose_level, info, warning, error, format, file } = args.clone();
    LogOptions { file, error, warning, info, verbose_level, format }
}

/// The repository's settings.
pub(super) fn repository(args: &ServeArgs) -> repository::Options {
    let models = &args.repository;
    let mode = match models.control_mode {
        ControlMode::None => repository::ControlMode::None,
        ControlMode::Poll => repository::ControlMode::Poll { period: Duration::from_secs(u64::from(models.poll_secs)) },
        ControlMode::Explicit => repository::ControlMode::Explicit { startup: models.load_models.clone() },
    };
    repository::Options {
        repositories: models.directories.iter().map(PathBuf::from).collect(),
        mode,
        strict_readiness: models.strict_readiness,
        auto_complete: args.auto_complete(),
        load_threads: models.load_threads as usize,
    }
}

/// The gRPC front end's settings.
///
/// # Errors
/// When a restriction is not well formed.
pub(super) fn grpc(args: &GrpcArgs) -> Result<GrpcConfig, RestrictionError> {
    let restricted =
        args.restricted.iter().map(|given| given.parse()).collect::<Result<Vec<RestrictedProtocol>, _>>()?;
    Ok(GrpcConfig {
        address: args.grpc_address,
        port: args.grpc_port,
        tls: tls(args),
        connection: ConnectionLimits {
            keepalive_time: some_ms(args.keepalive_time_ms),
            keepalive_timeout: Duration::from_millis(args.keepalive_timeout_ms),
            max_age: some_ms(args.max_age_ms),
            max_age_grace: some_ms(args.max_age_grace_ms),
            ..ConnectionLimits::default()
        },
        messages: MessageLimits {
            max_receive_bytes: args.max_receive_bytes as usize,
            max_send_bytes: args.max_send_bytes as usize,
        },
        compression: match args.compression {
            Compression::None => CompressionLevel::None,
            Compression::Low => CompressionLevel::Low,
            Compression::Medium => CompressionLevel::Medium,
            Compression::High => CompressionLevel::High,
        },
        restricted,
    })
}

/// Which files must be there was checked with the flags.
fn tls(args: &GrpcArgs) -> Option<TlsConfig> {
    if !args.use_ssl && !args.use_ssl_mutual {
        return None;
    }
    let client_ca = if args.use_ssl_mutual { args.root_cert.clone() } else { None };
    Some(TlsConfig { cert: args.server_cert.clone()?, key: args.server_key.clone()?, client_ca })
}

fn some_ms(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::serve, *};

    #[test]
    fn control_modes_take_what_belongs_to_them() {
        let mode = |flags: &[&str]| repository(&serve(flags)).mode;
        assert_eq!(mode(&[]), repository::ControlMode::None);
        let period = Duration::from_secs(3);
        assert_eq!(
            mode(&["--model-control-mode=poll", "--repository-poll-secs=3"]),
            repository::ControlMode::Poll { period }
        );
        assert_eq!(
            mode(&["--model-control-mode=explicit", "--load-model=a"]),
            repository::ControlMode::Explicit { startup: vec!["a".to_owned()] }
        );
    }

    #[test]
    fn a_client_certificate_is_asked_for_only_by_the_mutual_flag() {
        let files = ["--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-root-cert=r"];
        let tls = |flag: &[&str]| grpc(&serve(&[&files[..], flag].concat()).grpc).expect("no restrictions").tls;
        assert!(tls(&[]).is_none(), "files alone do not switch TLS on");
        assert_eq!(tls(&["--grpc-use-ssl"]).map(|tls| tls.client_ca), Some(None));
        assert_eq!(tls(&["--grpc-use-ssl-mutual"]).map(|tls| tls.client_ca), Some(Some(PathBuf::from("r"))));
    }

    #[test]
    fn times_of_zero_mean_never_and_sizes_pass_through() {
        let flags = ["--grpc-max-connection-age=1500", "--grpc-keepalive-time=0", "--grpc-max-receive-message-bytes=9"];
        let config = grpc(&serve(&flags).grpc).expect("no restrictions");
        assert_eq!(config.connection.max_age, Some(Duration::from_millis(1500)));
        assert_eq!(config.connection.max_age_grace, None);
        assert_eq!(config.connection.keepalive_time, None);
        assert_eq!(config.messages.max_receive_bytes, 9);
        assert_eq!(config.messages.max_send_bytes, i32::MAX as usize);
    }

    #[test]
    fn a_restriction_that_is_not_well_formed_is_refused() {
        assert!(grpc(&serve(&["--grpc-restricted-protocol=health:k=v"]).grpc).is_ok());
        assert!(grpc(&serve(&["--grpc-restricted-protocol=health"]).grpc).is_err());
    }
}
