//! Bodies that are compressed, too large, too slow, or malicious.

use std::io::{Read, Write};

use flate2::{Compression, read, write};

use super::*;

const INFER: &str = "/v2/models/ident/infer";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = write::GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = write::ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn request() -> Vec<u8> {
    let data = vec![0.0_f32; 16];
    json!({ "inputs": [{ "name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": data }] }).to_string().into()
}

#[tokio::test]
async fn bodies_and_answers_may_be_compressed() {
    let server = start().await;
    let plain = post(server.address(), INFER, &[], &request()).await;
    for (encoding, body) in [("gzip", gzip(&request())), ("deflate", deflate(&request())), ("identity", request())] {
        let answer = post(server.address(), INFER, &[("content-encoding", encoding)], &body).await;
        assert_eq!((answer.status, &answer.body), (200, &plain.body), "{encoding}");
    }
    let answer = post(server.address(), INFER, &[("accept-encoding", "gzip")], &request()).await;
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    let mut unpacked = Vec::new();
    read::GzDecoder::new(&*answer.body).read_to_end(&mut unpacked).expect("gzip");
    assert_eq!(unpacked, plain.body);
    let answer = post(server.address(), INFER, &[("accept-encoding", "deflate")], &request()).await;
    let mut unpacked = Vec::new();
    read::ZlibDecoder::new(&*answer.body).read_to_end(&mut unpacked).expect("zlib");
    assert_eq!(unpacked, plain.body);
}

#[tokio::test]
async fn names_of_compressions_have_any_case_and_gzip_has_any_number_of_members() {
    let server = start().await;
    let body = request();
    let (first, second) = body.split_at(30);
    let members = [gzip(first), gzip(b""), gzip(second)].concat();
    for (encoding, body) in [
        ("GZIP", gzip(&body)),
        ("x-gzip", gzip(&body)),
        ("identity, gzip", gzip(&body)),
        ("gzip", members),
        ("Deflate", deflate(&body)),
    ] {
        let answer = post(server.address(), INFER, &[("content-encoding", encoding)], &body).await;
        assert_eq!(answer.status, 200, "{encoding}: {}", String::from_utf8_lossy(&answer.body));
    }
    let lines = [("content-encoding", ""), ("content-encoding", "gzip"), ("content-encoding", "identity")];
    assert_eq!(post(server.address(), INFER, &lines, &gzip(&body)).await.status, 200, "several lines");
}

#[tokio::test]
async fn headers_that_contradict_themselves_are_refused() {
    let server = start().await;
    let body = request();
    for lines in [["gzip", "deflate"], ["gzip", "gzip"], ["gzip, chunked", ""], ["br", "gzip"]] {
        let lines = lines.map(|line| ("content-encoding", line));
        let answer = post(server.address(), INFER, &lines, &gzip(&body)).await;
        assert_eq!(answer.status, 415, "{lines:?}");
        assert!(answer.error().contains("expected gzip, deflate or identity"), "{lines:?}: {}", answer.error());
    }
    let length = body.len().to_string();
    let name = "inference-header-content-length";
    for (lengths, expected) in
        [([&*length, "5"], 400), (["5", &*length], 400), ([&*length, &*length], 200), ([&*length, "x"], 400)]
    {
        let lines = lengths.map(|length| (name, length));
        assert_eq!(post(server.address(), INFER, &lines, &body).await.status, expected, "{lengths:?}");
    }
    for length in ["+2", "2, 2", "0x2"] {
        assert_eq!(post(server.address(), INFER, &[(name, length)], b"{}").await.status, 400, "{length}");
    }
}

#[tokio::test]
async fn what_follows_compressed_data_is_refused() {
    let server = start().await;
    for (encoding, body) in [("gzip", gzip(&request())), ("deflate", deflate(&request()))] {
        let half = &body[..body.len() - 3];
        for body in [[&body[..], b"garbage"].concat(), [&body[..], b"\0"].concat(), half.to_vec()] {
            let answer = post(server.address(), INFER, &[("content-encoding", encoding)], &body).await;
            assert_eq!(answer.status, 400, "{encoding}");
            assert!(answer.error().contains("cannot decompress"), "{encoding}: {}", answer.error());
        }
    }
}

#[tokio::test]
async fn a_transfer_coding_other_than_chunked_is_not_implemented() {
    let server = start().await;
    for (coding, expected) in [("gzip, chunked", 501), ("chunked", 200), ("Chunked", 200)] {
        let body = String::from_utf8(request()).expect("ASCII");
        let head = format!("POST {INFER} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        let request = format!("{head}transfer-encoding: {coding}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        assert_eq!(send(server.address(), request.as_bytes()).await.status, expected, "{coding}");
    }
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_body_announces_that_the_connection_closes() {
    let server = start().await;
    let ask = async |path: &str, method: &str, sent: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{sent}");
        let mut stream = TcpStream::connect(server.address()).await.expect("the server listens");
        stream.write_all(head.as_bytes()).await.expect("the server reads");
        let mut answer = Vec::new();
        while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
            let mut more = [0; 1024];
            let count = stream.read(&mut more).await.expect("the server answers");
            assert_ne!(count, 0, "{method} {path}: {}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&more[..count]);
        }
        let answer = String::from_utf8_lossy(&answer).to_lowercase();
        let status: u16 = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, answer.contains("\r\nconnection: close\r\n"))
    };
    assert_eq!(ask("/v2/health/live", "GET", "").await, (200, true));
    assert_eq!(ask("/nothing", "POST", "12345").await, (404, true));
    assert_eq!(ask("/v2/health/live", "POST", "").await, (405, true));
    let (status, closes) = ask("/v2/models/nope/infer", "POST", "0123456789").await;
    assert_eq!((status, closes), (404, false), "the body was read");
}

#[tokio::test]
async fn compression_that_is_broken_or_not_known_is_refused() {
    let server = start().await;
    let answer = post(server.address(), INFER, &[("content-encoding", "br")], &request()).await;
    assert_eq!(answer.status, 415);
    assert!(answer.error().contains("expected gzip, deflate or identity"), "{}", answer.error());
    let answer = post(server.address(), INFER, &[("content-encoding", "gzip")], &request()).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("cannot decompress"), "{}", answer.error());
}

#[tokio::test]
async fn a_small_body_that_unpacks_to_a_large_one_is_refused_at_the_limit() {
    let limits = HttpConfig { max_input_bytes: 1 << 20, ..HttpConfig::default() };
    let server = start_with(Budgets::default(), limits, Timeline::off()).await;
    let bomb = gzip(&vec![b' '; 64 << 20]);
    assert!(bomb.len() < 1 << 20, "{} bytes", bomb.len());
    let answer = post(server.address(), INFER, &[("content-encoding", "gzip")], &bomb).await;
    assert_eq!(answer.status, 400);
    let expected =
        "Decompressed data size exceeds the maximum allowed value of 1048576 bytes. Use --http-max-input-size";
    assert!(answer.error().starts_with(expected), "{}", answer.error());
    assert_eq!(server.fixture.services.budgets.bytes.used(), 0, "nothing is held any more");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_by_its_declared_length_or_as_it_comes() {
    let limits = HttpConfig { max_input_bytes: 1000, ..HttpConfig::default() };
    let server = start_with(Budgets::default(), limits, Timeline::off()).await;
    let head = format!("POST {INFER} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let declared = format!("{head}content-length: 1001\r\n\r\n");
    let answer = send(server.address(), declared.as_bytes()).await;
    let expected = "request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes. \
                    Use --http-max-input-size to increase the limit.";
    assert_eq!((answer.status, answer.error().as_str()), (400, expected), "no byte has come");
    let piece = format!("100\r\n{}\r\n", " ".repeat(0x100));
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{}", piece.repeat(4));
    let answer = send(server.address(), chunked.as_bytes()).await;
    assert_eq!(answer.status, 400, "its end has not come");
    let raw = declared.replace("host: ", "inference-header-content-length: 0\r\nhost: ");
    let answer = send(server.address(), raw.as_bytes()).await;
    assert!(answer.error().starts_with("Raw input has a byte_size (1001 bytes)"), "{}", answer.error());
    let header = declared.replace("host: ", "inference-header-content-length: 1001\r\nhost: ");
    let answer = send(server.address(), header.as_bytes()).await;
    assert_eq!((answer.status, answer.error().as_str()), (400, expected), "the JSON alone");
    // Binary data behind the JSON has no limit of its own.
    let json = b"{}";
    let length = json.len().to_string();
    let headers = [("inference-header-content-length", length.as_str())];
    let answer = post(server.address(), INFER, &headers, &[json, &[0; 2000][..]].concat()).await;
    assert!(answer.error().contains("bytes of binary data follow"), "{}", answer.error());
}

#[tokio::test]
async fn a_body_has_at_most_65_536_chunks() {
    let server = start().await;
    let spaces = |chunks: usize| {
        let body = String::from_utf8(request()).expect("ASCII");
        let head = format!(
            "POST {INFER} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let last = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        [head, "1\r\n \r\n".repeat(chunks - 1), last].concat()
    };
    assert_eq!(send(server.address(), spaces(65_536).as_bytes()).await.status, 200);
    let answer = send(server.address(), spaces(65_537).as_bytes()).await;
    let expected = "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks.";
    assert_eq!((answer.status, answer.error().as_str()), (400, expected));
}

#[tokio::test]
async fn bodies_come_in_chunks_of_any_size() {
    let server = start().await;
    let expected = post(server.address(), INFER, &[], &request()).await.body;
    for size in [1, 7, 100_000] {
        let mut body = format!(
            "POST {INFER} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        for piece in request().chunks(size) {
            body += &format!("{:x}\r\n{}\r\n", piece.len(), str::from_utf8(piece).expect("ASCII"));
        }
        let answer = send(server.address(), format!("{body}0\r\n\r\n").as_bytes()).await;
        assert_eq!(answer.body, expected, "chunks of {size}");
    }
}

#[tokio::test]
async fn a_large_body_of_text_is_parsed_apart_and_gives_the_same() {
    let server = start().await;
    let spaces = " ".repeat(3 << 20);
    let body = [spaces.as_bytes(), &request()].concat();
    let answer = post(server.address(), INFER, &[], &body).await;
    assert_eq!(answer.body, post(server.address(), INFER, &[], &request()).await.body);
    assert_eq!(server.fixture.services.budgets.bytes.used(), 0, "nothing is held any more");
}

#[tokio::test]
async fn a_body_for_which_there_is_no_room_is_refused() {
    let bytes = Budget::of_bytes(1 << 20);
    let budgets = Budgets { bytes: Arc::clone(&bytes), ..Budgets::default() };
    let server = start_with(budgets, HttpConfig::default(), Timeline::off()).await;
    let never = post(server.address(), INFER, &[], &vec![b' '; 512 << 10]).await;
    assert_eq!(never.status, 413, "more than a connection's quarter: {}", never.error());
    assert_eq!((bytes.used(), bytes.refused()), (0, 1));
    // Elements that take more memory than their text.
    let data = vec![0; 100_000];
    let input = json!({ "name": "INPUT0", "shape": [1, 100_000], "datatype": "FP64", "data": data });
    let asked = json!({ "inputs": [input] }).to_string();
    let answer = post(server.address(), INFER, &[], asked.as_bytes()).await;
    assert_eq!(answer.status, 413, "{}", answer.error());
    assert!(answer.error().contains("--max-pending-bytes"), "{}", answer.error());
    assert_eq!((bytes.used(), bytes.refused()), (0, 2));
}

#[tokio::test]
async fn bodies_may_use_all_of_a_share_however_they_come() {
    let bytes = Budget::of_bytes(16 << 20);
    let share = bytes.capacity() / 4;
    let budgets = Budgets { bytes: Arc::clone(&bytes), ..Budgets::default() };
    let server = start_with(budgets, HttpConfig::default(), Timeline::off()).await;
    let spaces = vec![b' '; share - (64 << 10)];
    let body = [&spaces[..], &request()].concat();
    let with_length = post(server.address(), INFER, &[], &body).await;
    assert_eq!(with_length.status, 200, "with a length: {}", String::from_utf8_lossy(&with_length.body));

    let mut chunked =
        format!("POST {INFER} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n");
    for piece in body.chunks(100_000) {
        chunked += &format!("{:x}\r\n{}\r\n", piece.len(), str::from_utf8(piece).expect("ASCII"));
    }
    let answer = send(server.address(), format!("{chunked}0\r\n\r\n").as_bytes()).await;
    assert_eq!(answer.status, 200, "in chunks: {}", String::from_utf8_lossy(&answer.body));

    // Room for decompressed bytes is made in steps of 256 KiB.
    let packed = gzip(&body[256 << 10..]);
    let answer = post(server.address(), INFER, &[("content-encoding", "gzip")], &packed).await;
    assert_eq!(answer.status, 200, "compressed: {}", String::from_utf8_lossy(&answer.body));
    assert_eq!((bytes.used(), bytes.refused()), (0, 0));
}

#[tokio::test]
async fn many_empty_entries_are_counted_before_they_take_memory() {
    let server = start().await;
    let cases = [
        (
            "inputs",
            format!("{{\"inputs\":[{}]}}", vec!["{\"name\":\"\",\"shape\":[],\"datatype\":\"\"}"; 5000].join(",")),
        ),
        ("outputs", format!("{{\"outputs\":[{}]}}", vec!["{\"name\":\"\"}"; 5000].join(","))),
        ("parameters", format!("{{\"parameters\":{{{}}}}}", vec!["\"a\":0"; 5000].join(","))),
        ("shape", format!("{{\"inputs\":[{{\"shape\":[{}]}}]}}", vec!["0"; 70_000].join(","))),
    ];
    for (name, body) in cases {
        let answer = post(server.address(), INFER, &[], body.as_bytes()).await;
        assert_eq!(answer.status, 400, "{name}");
        assert!(answer.error().contains(&format!("too many '{name}' entries")), "{}", answer.error());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_or_drips_is_given_up() {
    for (pause, expected) in
        [(Duration::from_secs(3600), "0 bytes are there"), (Duration::from_secs(20), "bytes are there")]
    {
        let pieces = async_pieces(pause);
        let budget = Budget::of_bytes(1 << 20);
        let workers = crate::intake::Workers::new();
        let read = super::super::body::read(
            pieces,
            &http::HeaderMap::new(),
            super::super::body::Limit::Json(1 << 20),
            &budget,
            &workers,
        )
        .await;
        let answer = axum::response::IntoResponse::into_response(read.map(|_| ()).expect_err("it is too slow"));
        assert_eq!(answer.status(), 408);
        let text = axum::body::to_bytes(answer.into_body(), 1 << 10).await.expect("a short text");
        assert!(String::from_utf8_lossy(&text).contains(expected), "{text:?}");
        assert_eq!(budget.used(), 0);
    }
}

/// An infinite body that sends one byte after each pause.
fn async_pieces(pause: Duration) -> axum::body::Body {
    let pieces = futures_util::stream::unfold((), move |()| async move {
        tokio::time::sleep(pause).await;
        Some((Ok::<_, std::convert::Infallible>(bytes::Bytes::from_static(b" ")), ()))
    });
    axum::body::Body::from_stream(pieces)
}
