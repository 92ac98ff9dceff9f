//! Negotiates compression with a client and compresses responses.

use std::io::Write;

use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::{Status, metadata::MetadataValue};

use crate::{grpc::CompressionLevel, intake::Encoding};

/// Encodings that this server accepts in requests.
const ACCEPTED: &str = "identity,deflate,gzip";

/// The header of a message's compression.
pub(super) const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Takes the encoding that a request declares for its compressed messages out of its headers: tonic reads what has been
/// decompressed.
///
/// # Errors
/// UNIMPLEMENTED, with the supported encodings, if this server does not know it.
pub(crate) fn take_encoding(headers: &mut HeaderMap) -> Result<Option<Encoding>, Status> {
    let Some(declared) = headers.remove(GRPC_ENCODING) else { return Ok(None) };
    match declared.as_bytes() {
        b"identity" => Ok(None),
        b"gzip" => Ok(Some(Encoding::Gzip)),
        b"deflate" => Ok(Some(Encoding::Deflate)),
        _ => {
            let mut status = Status::unimplemented(format!("compression {declared:?} is none of {ACCEPTED}"));
            status.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static(ACCEPTED));
            Err(status)
        }
    }
}

/// Returns the first supported encoding in the client's list.
fn accepted(headers: &HeaderMap) -> Option<Encoding> {
    let accepted = headers.get("grpc-accept-encoding")?.to_str().ok()?;
    accepted.split(',').find_map(|encoding| match encoding.trim() {
        "gzip" => Some(Encoding::Gzip),
        "deflate" => Some(Encoding::Deflate),
        _ => None,
    })
}

/// Compression of the messages of one response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    encoding: Encoding,
    level: Compression,
}

impl Packing {
    /// Returns the compression that the server's level and the client's header allow.
    pub(crate) fn negotiate(level: CompressionLevel, headers: &HeaderMap) -> Option<Self> {
        let level = match level {
            CompressionLevel::None => return None,
            CompressionLevel::Low => Compression::fast(),
            CompressionLevel::Medium => Compression::default(),
            CompressionLevel::High => Compression::best(),
        };
        Some(Self { encoding: accepted(headers)?, level })
    }

    /// Returns the value of the response's `grpc-encoding` header.
    pub(super) fn header(self) -> HeaderValue {
        HeaderValue::from_static(self.encoding.name())
    }

    /// Appends the compressed `message` to `frame`.
    pub(super) fn compress(self, message: &[u8], frame: Vec<u8>) -> std::io::Result<Vec<u8>> {
        match self.encoding {
            Encoding::Gzip => {
                let mut encoder = GzEncoder::new(frame, self.level);
                encoder.write_all(message)?;
                encoder.finish()
            }
            Encoding::Deflate => {
                let mut encoder = ZlibEncoder::new(frame, self.level);
                encoder.write_all(message)?;
                encoder.finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(http::HeaderName::from_static(name), HeaderValue::from_static(value))])
    }

    #[test]
    fn a_request_says_how_it_is_compressed() {
        let of = |value| take_encoding(&mut headers("grpc-encoding", value));
        assert_eq!(of("gzip").expect("known"), Some(Encoding::Gzip));
        assert_eq!(of("deflate").expect("known"), Some(Encoding::Deflate));
        assert_eq!(of("identity").expect("known"), None);
        assert_eq!(take_encoding(&mut HeaderMap::new()).expect("absent"), None);
    }

    #[test]
    fn an_unknown_compression_is_refused_with_those_that_would_do() {
        let status = take_encoding(&mut headers("grpc-encoding", "zstd")).expect_err("not known here");
        assert_eq!(status.code(), tonic::Code::Unimplemented);
        assert_eq!(status.metadata().get("grpc-accept-encoding").expect("the list"), ACCEPTED);
    }

    #[test]
    fn replies_are_compressed_only_where_flag_and_client_agree() {
        let both = headers("grpc-accept-encoding", "identity, gzip,deflate");
        let packing = Packing::negotiate(CompressionLevel::Medium, &both).expect("both agree");
        assert_eq!(packing.encoding, Encoding::Gzip);
        assert!(Packing::negotiate(CompressionLevel::None, &both).is_none(), "the flag says no");
        assert!(Packing::negotiate(CompressionLevel::High, &HeaderMap::new()).is_none(), "the client says nothing");
    }
}
