//! Routes a call by its path to the method that answers it.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, Request, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use hyper::body::Incoming;
use paternoster_executor::Backlog;
use paternoster_observe::{
    budget::Reservation,
    trace::{RequestTrace, TRACE_RESPONSE, Transport},
};
use paternoster_repository::Requester;
use prost::Message;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::Instrument;

use super::{
    CompressionLevel, GrpcConfig, MessageLimits,
    framing::{
        Deadline, MessageReader, Packing, ResponseBody, Writer, answered, before, deadline, decode, encoding_of,
        refused, streaming,
    },
    health,
    methods::{InferStream, StreamBounds, infer, read_load},
    reflection::{Reflection, UntilClosing},
};
use crate::{
    Protocol, Services, clients::Identity, intake::Workers, methods, restricted::Restrictions,
    services::ConnectionHolds, span,
};

const SERVICE: &str = "/inference.GRPCInferenceService/";
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Maximum request size of a method that is not meant to carry data; names and settings are far shorter. Such a request
/// cannot take much memory, whatever it contains.
const MOST_SMALL_REQUEST_BYTES: usize = 64 << 10;

/// Everything needed to answer calls.
pub(super) struct Dispatch {
    services: Arc<Services>,
    restrictions: Restrictions,
    reflection: Reflection,
    messages: MessageLimits,
    compression: CompressionLevel,
    stream_bounds: StreamBounds,
    workers: Arc<Workers>,
    /// Cancelled when open streams must end.
    closing: CancellationToken,
}

/// One call whose headers have been read.
pub(super) struct Call {
    /// Its request messages.
    pub(super) reader: MessageReader<Incoming>,
    /// Encoder of its response.
    pub(super) writer: Writer,
    /// Responses of its connection that wait for the client.
    pub(super) backlog: Arc<Backlog>,
    /// Time at which its client stops waiting.
    pub(super) deadline: Deadline,
}

/// Methods of the inference and health services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    ServerLive,
    ServerReady,
    ModelReady,
    ServerMetadata,
    ModelMetadata,
    ModelInfer,
    ModelStreamInfer,
    ModelConfig,
    ModelStatistics,
    RepositoryIndex,
    RepositoryModelLoad,
    RepositoryModelUnload,
    SystemSharedMemoryStatus,
    SystemSharedMemoryRegister,
    SystemSharedMemoryUnregister,
    CudaSharedMemoryStatus,
    CudaSharedMemoryRegister,
    CudaSharedMemoryUnregister,
    TraceSetting,
    LogSettings,
    HealthCheck,
    HealthWatch,
}

impl Method {
    fn of(path: &str) -> Option<Self> {
        let Some(name) = path.strip_prefix(SERVICE) else {
            return match path.strip_prefix(HEALTH)? {
                "Check" => Some(Self::HealthCheck),
                "Watch" => Some(Self::HealthWatch),
                _ => None,
            };
        };
        Some(match name {
            "ModelInfer" => Self::ModelInfer,
            "ModelStreamInfer" => Self::ModelStreamInfer,
            "ServerLive" => Self::ServerLive,
            "ServerReady" => Self::ServerReady,
            "ModelReady" => Self::ModelReady,
            "ServerMetadata" => Self::ServerMetadata,
            "ModelMetadata" => Self::ModelMetadata,
            "ModelConfig" => Self::ModelConfig,
            "ModelStatistics" => Self::ModelStatistics,
            "RepositoryIndex" => Self::RepositoryIndex,
            "RepositoryModelLoad" => Self::RepositoryModelLoad,
            "RepositoryModelUnload" => Self::RepositoryModelUnload,
            "SystemSharedMemoryStatus" => Self::SystemSharedMemoryStatus,
            "SystemSharedMemoryRegister" => Self::SystemSharedMemoryRegister,
            "SystemSharedMemoryUnregister" => Self::SystemSharedMemoryUnregister,
            "CudaSharedMemoryStatus" => Self::CudaSharedMemoryStatus,
            "CudaSharedMemoryRegister" => Self::CudaSharedMemoryRegister,
            "CudaSharedMemoryUnregister" => Self::CudaSharedMemoryUnregister,
            "TraceSetting" => Self::TraceSetting,
            "LogSettings" => Self::LogSettings,
            _ => return None,
        })
    }

    fn protocol(self) -> Protocol {
        match self {
            Self::ModelInfer | Self::ModelStreamInfer => Protocol::Inference,
            Self::ServerLive | Self::ServerReady | Self::ModelReady | Self::HealthCheck | Self::HealthWatch => {
                Protocol::Health
            }
            Self::ServerMetadata | Self::ModelMetadata => Protocol::Metadata,
            Self::ModelConfig => Protocol::ModelConfig,
            Self::ModelStatistics => Protocol::Statistics,
            Self::RepositoryIndex | Self::RepositoryModelLoad | Self::RepositoryModelUnload => {
                Protocol::ModelRepository
            }
            Self::SystemSharedMemoryStatus
            | Self::SystemSharedMemoryRegister
            | Self::SystemSharedMemoryUnregister
            | Self::CudaSharedMemoryStatus
            | Self::CudaSharedMemoryRegister
            | Self::CudaSharedMemoryUnregister => Protocol::SharedMemory,
            Self::TraceSetting => Protocol::Trace,
            Self::LogSettings => Protocol::Logging,
        }
    }
}

impl Dispatch {
    pub(super) fn new(
        config: &GrpcConfig,
        services: Services,
        restrictions: Restrictions,
        reflection: Reflection,
        closing: CancellationToken,
    ) -> Self {
        Self {
            services: Arc::new(services),
            restrictions,
            reflection,
            messages: config.messages,
            compression: config.compression,
            stream_bounds: StreamBounds {
                requests: config.connection.stream_in_flight,
                bytes: config.connection.stream_in_flight_bytes,
            },
            workers: Workers::new(),
            closing,
        }
    }

    /// Returns the resources that the calls of a new connection share.
    pub(super) fn connection(&self, identity: Identity) -> ConnectionHolds {
        self.services.connection(identity)
    }

    /// Answers one call of a connection. Dropping the future cancels the call.
    pub(super) async fn serve(&self, request: Request<Incoming>, holds: ConnectionHolds) -> Response<ResponseBody> {
        let (parts, body) = request.into_parts();
        if !is_grpc(&parts.headers) {
            return not_grpc();
        }
        let Some(method) = Method::of(parts.uri.path()) else {
            return Box::pin(self.serve_other(parts, body)).await;
        };
        let client = match method {
            Method::ModelInfer | Method::ModelStreamInfer => self.services.client(&holds, &parts.headers),
            _ => None,
        };
        let requester = self.services.requester(&holds, &parts.headers);
        let mut call = match self.begin(method, &parts.headers, body, holds) {
            Ok(call) => call,
            Err(status) => return refused(&status),
        };
        // If a client leaves responses unread, its requests are not read either. A stream checks this itself.
        if method != Method::ModelStreamInfer && !call.backlog.has_room() {
            let unread = &call.backlog;
            let room = async {
                unread.room().await;
                Ok(())
            };
            if let Err(status) = before(call.deadline, room).await {
                return refused(&status);
            }
        }
        match method {
            Method::ModelInfer => {
                let head = self.services.tracer.head(&parts.headers);
                let caller = self.services.repository.caller(&parts.headers, requester);
                drop(parts);
                let span = span::open(Transport::Grpc);
                let answering = async {
                    let _place = match &client {
                        Some(client) => match before(call.deadline, async { Ok(client.place().await) }).await {
                            Ok(place) => place,
                            Err(status) => return refused(&status),
                        },
                        None => None,
                    };
                    let Call { reader, writer, deadline, .. } = &mut call;
                    let answer = infer(&self.services, reader, *writer, *deadline, (caller, head), &span).await;
                    let (answer, trace) = match answer {
                        Ok((reply, trace)) => (Ok(reply), trace),
                        Err(status) => (Err(status), None),
                    };
                    let response = answered(call.writer, &call.backlog, answer);
                    match trace {
                        Some(trace) => traced(response, &trace),
                        None => response,
                    }
                };
                answering.instrument(span.clone()).await
            }
            Method::ModelStreamInfer => {
                let errors_end_stream =
                    parts.headers.get("triton_grpc_error").is_some_and(|value| value.as_bytes() == b"true");
                let writer = call.writer;
                let services = Arc::clone(&self.services);
                let closing = self.closing.clone();
                let parent = services.tracer.parent(&parts.headers);
                let of_call = (services.repository.caller(&parts.headers, requester), parent, client);
                let stream = InferStream::new(services, call, self.stream_bounds, errors_end_stream, closing, of_call);
                streaming(writer, Box::pin(stream))
            }
            other => {
                let loader = self.restrictions.check_load(&parts.headers).map(|()| requester);
                Box::pin(self.manage(other, call, loader)).await
            }
        }
    }

    fn begin(
        &self,
        method: Method,
        headers: &HeaderMap,
        body: Incoming,
        ConnectionHolds { share, backlog, .. }: ConnectionHolds,
    ) -> Result<Call, Status> {
        let protocol = method.protocol();
        self.check(protocol, headers)?;
        let packing = match protocol {
            Protocol::Inference => Packing::negotiate(self.compression, headers),
            _ => None,
        };
        let most_bytes = match method {
            Method::ModelInfer | Method::ModelStreamInfer | Method::RepositoryModelLoad => {
                self.messages.max_receive_bytes
            }
            _ => self.messages.max_receive_bytes.min(MOST_SMALL_REQUEST_BYTES),
        };
        let (encoding, held) = (encoding_of(headers)?, Reservation::none(&share));
        Ok(Call {
            reader: MessageReader::new(body, encoding, most_bytes, held, Arc::clone(&self.workers)),
            writer: Writer::new(packing, self.messages.max_send_bytes),
            backlog,
            deadline: deadline(headers)?,
        })
    }

    fn check(&self, protocol: Protocol, headers: &HeaderMap) -> Result<(), Status> {
        self.restrictions
            .check(protocol, headers)
            .map_err(|header| Status::unavailable(format!("This protocol is restricted, expecting header '{header}'")))
    }

    /// Answers every method except inference and load.
    async fn manage(
        &self,
        method: Method,
        call: Call,
        loader: Result<Requester, &HeaderName>,
    ) -> Response<ResponseBody> {
        let services = &*self.services;
        match method {
            Method::ModelInfer | Method::ModelStreamInfer => refused(&Status::internal("inference is no management")),
            Method::ServerLive => unary(call, async |request| Ok(methods::server_live(services, request))).await,
            Method::ServerReady => unary(call, async |request| Ok(methods::server_ready(services, request))).await,
            Method::ModelReady => unary(call, async |request| methods::model_ready(services, request)).await,
            Method::ServerMetadata => unary(call, async |request| Ok(methods::metadata(services, request))).await,
            Method::ModelMetadata => {
                unary(call, async |request| Ok(methods::model_metadata(services, request, loader).await?)).await
            }
            Method::ModelConfig => {
                unary(call, async |request| Ok(methods::model_config(services, request, loader).await?)).await
            }
            Method::ModelStatistics => {
                unary(call, async |request| methods::model_statistics(services, request).await).await
            }
            Method::RepositoryIndex => unary(call, async |request| methods::index(services, request).await).await,
            Method::RepositoryModelLoad => self.load(call).await,
            Method::RepositoryModelUnload => {
                unary(call, async |request| methods::unload(services, request).await).await
            }
            Method::SystemSharedMemoryStatus => {
                unary(call, async |request| methods::system_status(services, request)).await
            }
            Method::SystemSharedMemoryRegister => {
                unary(call, async |request| methods::system_register(services, request)).await
            }
            Method::SystemSharedMemoryUnregister => {
                unary(call, async |request| Ok(methods::system_unregister(services, request))).await
            }
            Method::CudaSharedMemoryStatus => {
                unary(call, async |request| methods::cuda_status(services, request)).await
            }
            Method::CudaSharedMemoryRegister => {
                unary(call, async |request| methods::cuda_register(services, request).await).await
            }
            Method::CudaSharedMemoryUnregister => {
                unary(call, async |request| Ok(methods::cuda_unregister(services, request))).await
            }
            Method::TraceSetting => unary(call, async |request| methods::trace_setting(services, request)).await,
            Method::LogSettings => unary(call, async |request| methods::log_settings(services, request)).await,
            Method::HealthCheck => unary(call, async |request| health::check(&services.readiness, &request)).await,
            Method::HealthWatch => self.watch(call).await,
        }
    }

    /// Answers RepositoryModelLoad, the only method besides inference whose requests may be large.
    async fn load(&self, call: Call) -> Response<ResponseBody> {
        let Call { mut reader, writer, backlog, deadline } = call;
        let load = async {
            let (request, held) = read_load(&self.workers, reader.only().await?).await?;
            methods::load(&self.services, request, held).await
        };
        let answer = before(deadline, load).await;
        answered(writer, &backlog, answer.and_then(|message| writer.encode(&message)))
    }

    async fn watch(&self, mut call: Call) -> Response<ResponseBody> {
        let request = before(call.deadline, call.reader.only()).await.and_then(|message| decode(message.bytes));
        match request {
            Ok(request) => {
                let updates = health::watch(&self.services.readiness, &request, call.writer, self.closing.clone());
                streaming(call.writer, updates)
            }
            Err(status) => refused(&status),
        }
    }

    /// Answers reflection, or rejects an unknown method.
    async fn serve_other(&self, parts: Parts, body: Incoming) -> Response<ResponseBody> {
        let Some(service) = self.reflection.service(parts.uri.path()) else {
            return refused(&Status::unimplemented(format!("unknown method '{}'", parts.uri.path())));
        };
        // Reflection describes the server's methods, so it belongs to the metadata group.
        if let Err(status) = self.check(Protocol::Metadata, &parts.headers) {
            return refused(&status);
        }
        let requests = UntilClosing::new(body, self.closing.clone());
        service(Request::from_parts(parts, requests)).await.map(ResponseBody::Foreign)
    }
}

/// Adds the span of its request to a response, and records in the trace when the response has been sent.
fn traced(mut response: Response<ResponseBody>, trace: &Arc<RequestTrace>) -> Response<ResponseBody> {
    if let Some(span) = trace.response_header() {
        response.headers_mut().insert(TRACE_RESPONSE, span);
    }
    response.map(|body| body.traced(trace.sending()))
}

/// Answers a call with one request and one response.
async fn unary<Q, A, W>(call: Call, work: W) -> Response<ResponseBody>
where
    Q: Message + Default,
    A: Message,
    W: AsyncFnOnce(Q) -> Result<A, Status>,
{
    let Call { mut reader, writer, backlog, deadline } = call;
    let answer = before(deadline, async { work(decode(reader.only().await?.bytes)?).await }).await;
    answered(writer, &backlog, answer.and_then(|message| writer.encode(&message)))
}

/// Whether a call has gRPC's content type, for messages of protobuf.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.as_bytes().split(|byte| *byte == b';').next());
    kind.is_some_and(|kind| {
        let kind = kind.trim_ascii();
        kind.eq_ignore_ascii_case(b"application/grpc") || kind.eq_ignore_ascii_case(b"application/grpc+proto")
    })
}

fn not_grpc() -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Empty);
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}
