//! Repository control, shared memory, log and trace settings over HTTP: converts JSON to the methods that gRPC uses,
//! and back.

use std::collections::HashMap;

use axum::{
    Json,
    extract::{Request, State},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::StatusCode;
use paternoster_wire::{
    json,
    pb::{
        self, ModelRepositoryParameter, infer_parameter, log_settings_request, log_settings_response,
        model_repository_parameter::ParameterChoice, trace_setting_request,
    },
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    Problem,
    api::Api,
    body::{self, Limit},
    object::Object,
    path::{ModelPath, PathNames},
};
use crate::{intake::Message, methods};

/// Maximum body of a request that is not meant to carry data, in bytes; names and settings are far shorter.
const MOST_SMALL_BODY_BYTES: usize = 64 << 10;

/// Reads a small body; empty if the request has none.
async fn small(api: &Api, request: Request) -> Result<Message, Problem> {
    let (parts, body) = request.into_parts();
    let share = api.holds(&parts.extensions).share;
    let limit = Limit::Small(MOST_SMALL_BODY_BYTES);
    body::read(body, &parts.headers, limit, &share, &api.workers).await
}

/// Parses the fields of an object; an empty body has none.
fn parse<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Problem> {
    let fields: Map<String, Value> = if bytes.is_empty() {
        Map::new()
    } else {
        serde_json::from_slice(bytes).map_err(|error| unparsable(&error))?
    };
    // Via an object, because serde would also accept a list for a structure's fields.
    serde_json::from_value(Value::Object(fields)).map_err(|error| unparsable(&error))
}

fn unparsable(error: &serde_json::Error) -> Problem {
    Problem::invalid(format!("failed to parse the request JSON: {error}"))
}

#[derive(Deserialize)]
struct IndexBody {
    #[serde(default)]
    ready: bool,
}

/// Answers `POST …/index` with a list of models and their states.
pub(super) async fn index(State(api): State<Api>, names: PathNames, request: Request) -> Result<Json<Value>, Problem> {
    let IndexBody { ready } = parse(&small(&api, request).await?.bytes)?;
    let asked = pb::RepositoryIndexRequest { repository_name: names.repository, ready };
    let answer = methods::index(&api.services, asked).await?;
    let entries = answer.models.into_iter().map(|entry| {
        let fields =
            [("name", entry.name), ("version", entry.version), ("state", entry.state), ("reason", entry.reason)];
        let known = fields.into_iter().filter(|(_, value)| !value.is_empty());
        known.map(|(key, value)| (key.to_owned(), value.into())).collect::<Map<String, Value>>().into()
    });
    Ok(Json(Value::Array(entries.collect())))
}

/// Answers `POST …/load` once the model is ready or has failed.
pub(super) async fn load(State(api): State<Api>, names: PathNames, request: Request) -> Result<StatusCode, Problem> {
    let (parts, body) = request.into_parts();
    let share = api.holds(&parts.extensions).share;
    let limit = Limit::Json(api.max_input_bytes);
    let mut message = body::read(body, &parts.headers, limit, &share, &api.workers).await?;
    // Its strings, and its files, which have three quarters of their base64's size.
    let built = message.bytes.len().saturating_mul(2);
    body::grow(&mut message.held, built).await?;
    // The reservation goes along to the worker, which goes on if the client leaves.
    let read = move || load_parameters(&message.bytes).map(|parameters| (parameters, message.held));
    let (parameters, held) = api.workers.run(built, read).await??;
    let asked =
        pb::RepositoryModelLoadRequest { repository_name: names.repository, model_name: names.model, parameters };
    methods::load(&api.services, asked, held).await?;
    Ok(StatusCode::OK)
}

/// Reads the parameters of a load request. Files are in base64.
fn load_parameters(body: &[u8]) -> Result<HashMap<String, ModelRepositoryParameter>, Problem> {
    let given = json::parameters(body)?;
    let converted = given.into_iter().map(|(key, value)| {
        let choice = match value.parameter_choice {
            Some(infer_parameter::ParameterChoice::StringParam(text)) if key.starts_with("file:") => {
                let file = STANDARD.decode(text).map_err(|error| {
                    Problem::invalid(format!("parameter '{key}' is no base64, which files are sent in: {error}"))
                })?;
                Some(ParameterChoice::BytesParam(file))
            }
            other => repository_choice(other),
        };
        Ok((key, ModelRepositoryParameter { parameter_choice: choice }))
    });
    converted.collect()
}

fn repository_choice(choice: Option<infer_parameter::ParameterChoice>) -> Option<ParameterChoice> {
    use infer_parameter::ParameterChoice as Given;
    match choice? {
        Given::BoolParam(value) => Some(ParameterChoice::BoolParam(value)),
        Given::Int64Param(value) => Some(ParameterChoice::Int64Param(value)),
        Given::StringParam(value) => Some(ParameterChoice::StringParam(value)),
        // No parameter of these methods has such a type.
        Given::Uint64Param(_) | Given::DoubleParam(_) => None,
    }
}

/// Answers `POST …/unload` once the model takes no more requests.
pub(super) async fn unload(State(api): State<Api>, names: PathNames, request: Request) -> Result<StatusCode, Problem> {
    let given = json::parameters(&small(&api, request).await?.bytes)?;
    let parameters = given.into_iter().map(|(key, value)| {
        let parameter_choice = repository_choice(value.parameter_choice);
        (key, ModelRepositoryParameter { parameter_choice })
    });
    let asked = pb::RepositoryModelUnloadRequest {
        repository_name: names.repository,
        model_name: names.model,
        parameters: parameters.collect(),
    };
    methods::unload(&api.services, asked).await?;
    Ok(StatusCode::OK)
}

/// Answers `GET /v2/systemsharedmemory[/region/…]/status`: a list of regions.
pub(super) async fn system_status(State(api): State<Api>, names: PathNames) -> Result<Json<Value>, Problem> {
    let asked = pb::SystemSharedMemoryStatusRequest { name: names.region };
    let mut regions: Vec<_> = methods::system_status(&api.services, asked)?.regions.into_values().collect();
    regions.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let regions = regions.into_iter().map(|region| {
        json!({ "name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size })
    });
    Ok(Json(regions.collect()))
}

#[derive(Deserialize)]
struct RegisterBody {
    key: String,
    #[serde(default)]
    offset: u64,
    byte_size: u64,
}

/// Answers `POST /v2/systemsharedmemory/region/…/register`.
pub(super) async fn system_register(
    State(api): State<Api>,
    names: PathNames,
    request: Request,
) -> Result<StatusCode, Problem> {
    let RegisterBody { key, offset, byte_size } = parse(&small(&api, request).await?.bytes)?;
    let asked = pb::SystemSharedMemoryRegisterRequest { name: names.region, key, offset, byte_size };
    methods::system_register(&api.services, asked)?;
    Ok(StatusCode::OK)
}

/// Answers `POST /v2/systemsharedmemory[/region/…]/unregister`.
pub(super) async fn system_unregister(State(api): State<Api>, names: PathNames) -> StatusCode {
    methods::system_unregister(&api.services, pb::SystemSharedMemoryUnregisterRequest { name: names.region });
    StatusCode::OK
}

/// Answers `GET /v2/cudasharedmemory[/region/…]/status`: a list of regions.
pub(super) async fn cuda_status(State(api): State<Api>, names: PathNames) -> Result<Json<Value>, Problem> {
    let asked = pb::CudaSharedMemoryStatusRequest { name: names.region };
    let mut regions: Vec<_> = methods::cuda_status(&api.services, asked)?.regions.into_values().collect();
    regions.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let regions = regions
        .into_iter()
        .map(|region| json!({ "name": region.name, "device_id": region.device_id, "byte_size": region.byte_size }));
    Ok(Json(regions.collect()))
}

#[derive(Deserialize)]
struct RegisterCudaBody {
    raw_handle: Object<RawHandle>,
    device_id: i64,
    byte_size: u64,
}

/// The driver's handle of the memory.
#[derive(Deserialize)]
struct RawHandle {
    b64: String,
}

/// Answers `POST /v2/cudasharedmemory/region/…/register`.
pub(super) async fn cuda_register(
    State(api): State<Api>,
    names: PathNames,
    request: Request,
) -> Result<StatusCode, Problem> {
    let RegisterCudaBody { raw_handle: Object(raw_handle), device_id, byte_size } =
        parse(&small(&api, request).await?.bytes)?;
    let raw_handle = STANDARD
        .decode(&raw_handle.b64)
        .map_err(|error| Problem::invalid(format!("'b64' of 'raw_handle' is no base64: {error}")))?;
    let asked = pb::CudaSharedMemoryRegisterRequest { name: names.region, raw_handle, device_id, byte_size };
    methods::cuda_register(&api.services, asked).await?;
    Ok(StatusCode::OK)
}

/// Answers `POST /v2/cudasharedmemory[/region/…]/unregister`.
pub(super) async fn cuda_unregister(State(api): State<Api>, names: PathNames) -> StatusCode {
    methods::cuda_unregister(&api.services, pb::CudaSharedMemoryUnregisterRequest { name: names.region });
    StatusCode::OK
}

/// Answers `GET` and `POST /v2/logging` with all settings, after the changes of the request.
pub(super) async fn logging(State(api): State<Api>, request: Request) -> Result<Json<Value>, Problem> {
    use log_settings_request::setting_value::ParameterChoice as Given;
    use log_settings_response::setting_value::ParameterChoice as Shown;
    let given: Map<String, Value> = parse(&small(&api, request).await?.bytes)?;
    let settings = given.into_iter().map(|(name, value)| {
        let choice = match value {
            Value::Bool(value) => Given::BoolParam(value),
            Value::String(value) => Given::StringParam(value),
            Value::Number(number) => {
                let level = number.as_u64().and_then(|level| u32::try_from(level).ok());
                Given::Uint32Param(level.ok_or_else(|| wrong_setting(&name, &number.into()))?)
            }
            other => return Err(wrong_setting(&name, &other)),
        };
        Ok((name, log_settings_request::SettingValue { parameter_choice: Some(choice) }))
    });
    let asked = pb::LogSettingsRequest { settings: settings.collect::<Result<_, _>>()? };
    let shown = methods::log_settings(&api.services, asked)?.settings.into_iter().map(|(name, value)| {
        let value = match value.parameter_choice {
            Some(Shown::BoolParam(value)) => value.into(),
            Some(Shown::Uint32Param(value)) => value.into(),
            Some(Shown::StringParam(value)) => value.into(),
            None => Value::Null,
        };
        (name, value)
    });
    Ok(Json(Value::Object(shown.collect())))
}

fn wrong_setting(name: &str, value: &Value) -> Problem {
    Problem::invalid(format!("setting '{name}' is {value}, expected a boolean, a string or a number of 32 bits"))
}

/// Answers `GET` and `POST` of the trace settings, globally or for a model.
pub(super) async fn trace(State(api): State<Api>, path: ModelPath, request: Request) -> Result<Json<Value>, Problem> {
    let given: Map<String, Value> = parse(&small(&api, request).await?.bytes)?;
    let settings = given.into_iter().map(|(name, value)| {
        let value = match value {
            Value::Null => Vec::new(),
            Value::String(text) => vec![text],
            Value::Array(list) => list.into_iter().map(text_of).collect(),
            other => vec![text_of(other)],
        };
        (name, trace_setting_request::SettingValue { value })
    });
    let asked = pb::TraceSettingRequest { model_name: path.model, settings: settings.collect() };
    let shown = methods::trace_setting(&api.services, asked)?.settings.into_iter().map(|(name, setting)| {
        // Only the setting with several values is a list.
        let value = match name.as_str() {
            "trace_level" => setting.value.into(),
            _ => setting.value.into_iter().next().into(),
        };
        (name, value)
    });
    Ok(Json(Value::Object(shown.collect())))
}

fn text_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
