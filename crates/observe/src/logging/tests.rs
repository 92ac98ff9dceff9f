//! Content and format of log records, and rejected changes of settings.

use tracing::{debug, debug_span, error, field::Empty, info, info_span, trace, warn};

use super::*;

/// A writer whose content the tests can read.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.0.lock())).expect("the log is text")
    }
}

impl io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a test with its own log and the page that it writes to.
fn with_log(options: LogOptions, test: impl FnOnce(&Logging, &Page)) {
    let page = Page::default();
    let writer = page.clone();
    let (logging, dispatch) = Logging::build(options, move || writer.clone());
    tracing::dispatcher::with_default(&dispatch, || test(&logging, &page));
}

/// Returns the first letter of every severity that is logged.
fn logged(page: &Page) -> Vec<&'static str> {
    page.take();
    error!("of error");
    warn!("of warning");
    info!("of info");
    debug!("of debug");
    trace!("of trace");
    debug!(target: "h2", "of a library");
    let text = page.take();
    let all = ["of error", "of warning", "of info", "of debug", "of trace", "of a library"];
    all.into_iter().filter(|message| text.contains(message)).collect()
}

#[test]
fn settings_start_as_triton_shows_them() {
    with_log(LogOptions::default(), |logging, _| {
        let expected = BTreeMap::from([
            ("log_error", LogValue::Bool(true)),
            ("log_file", LogValue::Text(String::new())),
            ("log_format", LogValue::Text("default".to_owned())),
            ("log_info", LogValue::Bool(true)),
            ("log_verbose_level", LogValue::Uint(0)),
            ("log_warning", LogValue::Bool(true)),
        ]);
        assert_eq!(logging.settings(), expected);
    });
}

#[test]
fn each_severity_is_switched_by_itself_while_running() {
    with_log(LogOptions::default(), |logging, page| {
        assert_eq!(logged(page), ["of error", "of warning", "of info"]);

        logging.apply([("log_warning", Some(LogValue::Bool(false)))]).expect("changeable");
        assert_eq!(logged(page), ["of error", "of info"], "only warnings were switched off");

        logging.apply([("log_verbose_level", Some(LogValue::Uint(1)))]).expect("changeable");
        assert_eq!(logged(page), ["of error", "of info", "of debug"]);

        logging.apply([("log_verbose_level", Some(LogValue::Uint(2)))]).expect("changeable");
        assert_eq!(logged(page), ["of error", "of info", "of debug", "of trace"]);

        logging.apply([("log_verbose_level", Some(LogValue::Uint(3)))]).expect("changeable");
        assert_eq!(logged(page).last(), Some(&"of a library"));

        let off = ["log_error", "log_info"].map(|name| (name, Some(LogValue::Bool(false))));
        logging.apply(off).expect("changeable");
        logging.apply([("log_verbose_level", Some(LogValue::Uint(0)))]).expect("changeable");
        assert_eq!(logged(page), [""; 0], "everything is off");
        assert_eq!(logging.settings()["log_error"], LogValue::Bool(false));
    });
}

#[test]
fn a_refused_change_names_the_setting_and_changes_nothing() {
    let text = |value: &str| LogValue::Text(value.to_owned());
    let cases = [
        (
            ("log_verbose_level", LogValue::Uint(4)),
            "log setting 'log_verbose_level' expects a level from 0 to 3, got 4",
        ),
        (("log_info", LogValue::Uint(1)), "log setting 'log_info' expects bool, got uint32"),
        (("log_error", text("yes")), "log setting 'log_error' expects bool, got string"),
        (("log_verbose_level", LogValue::Bool(true)), "log setting 'log_verbose_level' expects uint32, got bool"),
        (("log_format", LogValue::Bool(true)), "log setting 'log_format' expects string, got bool"),
        (("log_format", text("xml")), "log setting 'log_format': expected default, ISO8601 or json, got 'xml'"),
        (("log_file", text("elsewhere.log")), "log file location can not be updated through network protocol"),
    ];
    with_log(LogOptions::default(), |logging, _| {
        let before = logging.settings();
        let quiet = ("log_warning", Some(LogValue::Bool(false)));
        let refused = |change| logging.apply([quiet.clone(), change]).expect_err("refused").to_string();
        for ((name, value), expected) in cases {
            assert_eq!(refused((name, Some(value))), expected);
            assert_eq!(logging.settings(), before, "the change before the refused one took place");
        }
        assert_eq!(refused(("log_info", None)), "log setting 'log_info' expects bool, got no value");
    });
}

#[test]
fn names_that_are_no_setting_are_ignored_as_triton_ignores_them() {
    with_log(LogOptions::default(), |logging, _| {
        let unknown = [("log_level", Some(LogValue::Uint(7))), ("log_colour", None)];
        let known = ("log_warning", Some(LogValue::Bool(false)));
        logging.apply(unknown.into_iter().chain([known])).expect("nothing is wrong with what is known");
        assert_eq!(logging.settings()["log_warning"], LogValue::Bool(false));
        assert_eq!(logging.settings().len(), 6, "and nothing is added");
    });
}

#[test]
fn a_line_has_severity_time_process_place_message_and_fields() {
    with_log(LogOptions::default(), |logging, page| {
        warn!(model = "slow", version = 3, "not ready");
        let line = page.take();
        let (head, rest) = line.split_once("] ").expect("a place ends with a bracket");
        assert_eq!(rest, "not ready model=\"slow\" version=3\n");
        let words: Vec<&str> = head.split(' ').collect();
        assert_eq!(words.len(), 4, "severity and day, time, process, place: {head}");
        assert!(words[0].starts_with('W') && words[0].len() == 5, "severity and day: {}", words[0]);
        assert_eq!(words[1].len(), "23:59:59.123456".len(), "time with microseconds: {}", words[1]);
        assert_eq!(words[2], std::process::id().to_string());
        assert!(words[3].starts_with("tests.rs:"), "place: {}", words[3]);

        logging.apply([("log_format", Some(LogValue::Text("ISO8601".to_owned())))]).expect("changeable");
        error!("broken");
        let line = page.take();
        let words: Vec<&str> = line.split(' ').collect();
        assert!(words[0].ends_with('Z') && words[0].len() == 20, "a whole date: {}", words[0]);
        assert_eq!((words[1], words[4]), ("E", "broken\n"));
    });
}

#[test]
fn a_json_record_keeps_the_types_of_its_fields() {
    with_log(LogOptions { format: LogFormat::Json, ..LogOptions::default() }, |_, page| {
        info!(model = "slow", version = 3, ready = true, "line one\nline two");
        let text = page.take();
        assert_eq!(text.lines().count(), 1, "a record is one line: {text}");
        let record: serde_json::Value = serde_json::from_str(&text).expect("a JSON object");
        assert_eq!(record["level"], "INFO");
        assert_eq!(record["message"], "line one\nline two");
        assert_eq!((&record["model"], &record["version"]), (&"slow".into(), &3.into()));
        assert_eq!(record["ready"], true);
    });
}

#[test]
fn a_file_that_cannot_be_opened_is_named() {
    let path = PathBuf::from("no/such/directory/server.log");
    let options = LogOptions { file: Some(path), ..LogOptions::default() };
    let error = Logging::start(options).expect_err("the directory is not there").to_string();
    assert!(error.starts_with("cannot open log file 'no/such/directory/server.log': "), "{error}");
}

/// Returns the part of a line after the source location.
fn body(page: &Page) -> String {
    let text = page.take();
    assert_eq!(text.lines().count(), 1, "a record is one line: {text}");
    text.trim_end().split_once("] ").expect("a place ends with a bracket").1.to_owned()
}

#[test]
fn a_record_has_the_fields_of_the_spans_around_it_and_the_innermost_counts() {
    with_log(LogOptions::default(), |logging, page| {
        let load = info_span!("load", model = "outer", version = 3, engine = Empty);
        load.record("engine", "onnxruntime");
        load.in_scope(|| {
            let _inner = info_span!("measure", what = "2 stages", model = "inner").entered();
            warn!(rows = 4, "slow");
            let fields = r#"rows=4 what="2 stages" model="inner" version=3 engine="onnxruntime""#;
            assert_eq!(body(page), format!("slow {fields}"));
            warn!(model = "own", "slow");
            assert!(body(page).starts_with(r#"slow model="own" what="2 stages" version=3"#));

            logging.apply([("log_format", Some(LogValue::Text("json".to_owned())))]).expect("changeable");
            warn!(rows = 4, "slow");
            let record: serde_json::Value = serde_json::from_str(&page.take()).expect("a JSON object");
            assert_eq!((&record["model"], &record["version"]), (&"inner".into(), &3.into()));
            assert_eq!((&record["rows"], &record["message"]), (&4.into(), &"slow".into()));
            logging.apply([("log_format", Some(LogValue::Text("default".to_owned())))]).expect("changeable");
        });
        warn!("apart");
        assert_eq!(body(page), "apart", "a span that is left adds no fields");
    });
}

#[test]
fn spans_of_level_info_are_open_as_long_as_anything_is_logged_and_debug_spans_where_debug_lines_are() {
    with_log(LogOptions { info: false, error: false, ..LogOptions::default() }, |logging, page| {
        let within = |expected| {
            let load = info_span!("load", model = "slow").entered();
            let infer = debug_span!("infer", request_id = "7").entered();
            assert_eq!((!load.is_disabled(), !infer.is_disabled()), expected);
            warn!("slow");
        };
        within((true, false));
        assert_eq!(body(page), r#"slow model="slow""#);
        logging.apply([("log_verbose_level", Some(LogValue::Uint(1)))]).expect("changeable");
        within((true, true));
        assert_eq!(body(page), r#"slow request_id="7" model="slow""#);
        let off = [("log_verbose_level", LogValue::Uint(0)), ("log_warning", LogValue::Bool(false))];
        logging.apply(off.map(|(name, value)| (name, Some(value)))).expect("changeable");
        within((false, false));
        assert_eq!(page.take(), "");
    });
}

#[test]
fn what_a_client_sends_forges_neither_a_line_nor_a_field() {
    let forged = "x\" model=\"other\"\nE1231 23:59:59.000000 1 forged.rs:1] lost\u{1b}[2J\u{2028}";
    with_log(LogOptions::default(), |logging, page| {
        let _request = info_span!("infer", request_id = forged).entered();
        let quoted = format!("{forged:?}");
        warn!(reason = forged, error = %forged, "refused");
        assert_eq!(body(page), format!("refused reason={quoted} error={quoted} request_id={quoted}"));
        warn!(one = %"", two = %"a=b", three = %"a b", four = %"plain", "values");
        assert!(body(page).starts_with(r#"values one="" two="a=b" three="a b" four=plain"#));

        warn!("of {forged}");
        let text = page.take();
        let mut lines = text.lines();
        assert!(lines.next().is_some_and(|line| line.starts_with('W')), "{text}");
        assert!(lines.next().is_some_and(|line| line.starts_with("  E1231")), "indented, it is no record: {text}");
        assert!(lines.next().is_none() && !text.contains('\u{1b}') && !text.contains('\u{2028}'), "{text}");

        logging.apply([("log_format", Some(LogValue::Text("json".to_owned())))]).expect("changeable");
        warn!(reason = forged, "refused");
        let text = page.take();
        assert_eq!(text.lines().count(), 1, "{text}");
        let record: serde_json::Value = serde_json::from_str(&text).expect("a JSON object");
        assert_eq!((&record["reason"], &record["request_id"]), (&forged.into(), &forged.into()));
        assert_eq!(record.get("model"), None);
    });
}
