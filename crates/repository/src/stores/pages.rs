//! Pages of listings as stores send them: bounded in size, and with keys that a client can read.
//!
//! The client rejects a whole page if one key in it has an empty part, a part `.` or `..`, or a control character. Such
//! a key is the fault of its own model alone. It is therefore marked before the client reads the page, and the listing
//! restores it.

use std::{borrow::Cow, fmt};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{Method, header::CONTENT_LENGTH};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
    },
};
use quick_xml::{
    Reader, Writer,
    escape::resolve_predefined_entity,
    events::{BytesText, Event},
};

/// Most bytes of a page. A page has at most 5,000 keys of 1 KiB, each with a few hundred bytes beside it.
const MAX_PAGE_BYTES: usize = 16 << 20;

/// Marks an empty part of a key, and a part `.` or `..`. A character for private use: a key that has it by itself is
/// rejected like one that is marked.
const MARK: char = '\u{f8ff}';

/// A control character is marked by the character at this place plus its code.
const CONTROL: u32 = 0xf700;

/// Elements that contain keys: of S3 and Google, and of Azure.
const OF_KEYS: [&[u8]; 3] = [b"Key", b"Prefix", b"Name"];

/// Creates clients whose listings are bounded and readable.
#[derive(Debug, Default)]
pub(super) struct ListingConnector;

impl HttpConnector for ListingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Pages(ReqwestConnector::default().connect(options)?)))
    }
}

struct Pages(HttpClient);

impl fmt::Debug for Pages {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pages")
    }
}

#[async_trait]
impl HttpService for Pages {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_listing = is_listing(&request);
        let response = self.0.execute(request).await?;
        if !is_listing || !response.status().is_success() {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let page = gathered(body.bytes_stream(), MAX_PAGE_BYTES).await?;
        let page = with_marked_keys(&page).map_err(|error| HttpError::new(HttpErrorKind::Decode, error))?;
        parts.headers.remove(CONTENT_LENGTH);
        Ok(HttpResponse::from_parts(parts, page.into()))
    }
}

fn is_listing(request: &HttpRequest) -> bool {
    let mut settings = request.uri().query().unwrap_or_default().split('&');
    request.method() == Method::GET && settings.any(|setting| setting == "list-type=2" || setting == "comp=list")
}

#[derive(Debug, thiserror::Error)]
#[error("a page of the listing has more than {0} bytes")]
struct TooLarge(usize);

/// Reads a page of at most `most` bytes.
async fn gathered(
    mut pieces: impl TryStreamExt<Ok = Bytes, Error = HttpError> + Unpin,
    most: usize,
) -> Result<Vec<u8>, HttpError> {
    let mut page = Vec::new();
    while let Some(piece) = pieces.try_next().await? {
        if page.len() + piece.len() > most {
            return Err(HttpError::new(HttpErrorKind::Decode, TooLarge(most)));
        }
        page.extend_from_slice(&piece);
    }
    Ok(page)
}

/// Returns a page in which every key that the client would reject is marked.
fn with_marked_keys(page: &[u8]) -> Result<Vec<u8>, quick_xml::Error> {
    let mut reader = Reader::from_reader(page);
    let mut writer = Writer::new(Vec::with_capacity(page.len()));
    // The key that is being read.
    let mut key: Option<String> = None;
    loop {
        match (reader.read_event()?, &mut key) {
            (Event::Eof, _) => return Ok(writer.into_inner()),
            (Event::Start(tag), None) => {
                key = OF_KEYS.contains(&tag.local_name().as_ref()).then(String::new);
                writer.write_event(Event::Start(tag))?;
            }
            (Event::Text(text), Some(key)) => key.push_str(&text.decode()?),
            (Event::CData(text), Some(key)) => key.push_str(&text.decode()?),
            (Event::GeneralRef(reference), Some(key)) => match reference.resolve_char_ref() {
                Ok(Some(character)) => key.push(character),
                // A character that XML does not allow, or the name of one.
                _ => key.push_str(resolve_predefined_entity(&reference.decode()?).unwrap_or("\0")),
            },
            (Event::End(tag), Some(read)) => {
                writer.write_event(Event::Text(BytesText::new(&marked(read))))?;
                writer.write_event(Event::End(tag))?;
                key = None;
            }
            (event, _) => writer.write_event(event)?,
        }
    }
}

/// Returns a key with marks in place of what the client rejects.
fn marked(key: &str) -> String {
    // A key that ends in a slash represents a folder.
    let (path, end) = key.strip_suffix('/').map_or((key, ""), |path| (path, "/"));
    if path.is_empty() {
        return key.to_owned();
    }
    let parts = path.split('/').map(|part| match part {
        "" | "." | ".." => format!("{MARK}{part}"),
        _ => part.chars().map(|character| mark_of(character).unwrap_or(character)).collect(),
    });
    parts.collect::<Vec<String>>().join("/") + end
}

fn mark_of(character: char) -> Option<char> {
    character.is_ascii_control().then(|| char::from_u32(CONTROL + u32::from(character))).flatten()
}

/// Returns a key as it is in the store.
pub(super) fn original(key: &str) -> Cow<'_, str> {
    let of_mark = |character: char| match u32::from(character).checked_sub(CONTROL) {
        _ if character == MARK => None,
        Some(code) if code < 0x80 => char::from_u32(code),
        _ => Some(character),
    };
    let is_marked = key.chars().any(|character| of_mark(character) != Some(character));
    if is_marked { key.chars().filter_map(of_mark).collect::<String>().into() } else { key.into() }
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;

    use super::*;

    #[test]
    fn every_key_can_be_read_and_is_restored() {
        for key in [
            "models/m/1/model.onnx",
            "models//readme.txt",
            "models/./x",
            "models/../x",
            "models/a\nb/\u{7f}",
            "//",
            "a//",
            "/a",
        ] {
            let read = Path::parse(marked(key)).unwrap_or_else(|error| panic!("{key:?}: {error}"));
            let expected = key.strip_suffix('/').unwrap_or(key);
            assert_eq!(original(read.as_ref()), expected, "{key:?}");
        }
        assert!(matches!(original("models/m/config.pbtxt"), Cow::Borrowed(_)));
    }

    #[test]
    fn keys_of_all_stores_are_marked_and_nothing_else_is_changed() {
        let page = "<?xml version=\"1.0\"?><R xmlns=\"u\"><Prefix>models/</Prefix><Contents><Key>a//&lt;&#10;b</Key>\
                    <ETag>&quot;..&quot;</ETag></Contents><CommonPrefixes><Prefix>..//</Prefix></CommonPrefixes>\
                    <Blob><Name>.</Name></Blob><NextMarker/></R>";
        let changed = String::from_utf8(with_marked_keys(page.as_bytes()).expect("it is XML")).expect("it is text");
        let expected = page
            .replace("a//&lt;&#10;b", "a/\u{f8ff}/&lt;\u{f70a}b")
            .replace("..//", "\u{f8ff}../\u{f8ff}/")
            .replace("<Name>.<", "<Name>\u{f8ff}.<");
        assert_eq!(changed, expected);
        assert!(with_marked_keys(b"<R><Key>a</R>").is_err(), "what is not XML is the store's fault");
    }

    #[tokio::test]
    async fn a_page_is_bounded() {
        let pieces = || futures_util::stream::iter([Ok(Bytes::from_static(b"abc")), Ok(Bytes::from_static(b"de"))]);
        assert_eq!(gathered(pieces(), 5).await.expect("it has five bytes"), b"abcde");
        let error = gathered(pieces(), 4).await.expect_err("one byte too many");
        assert!(format!("{error}").contains("more than 4 bytes"), "{error}");
    }
}
