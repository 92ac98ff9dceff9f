//! Targets of a load.

use std::{future::Future, pin::Pin, sync::Arc};

use paternoster_executor::{InferRequest, OutputTensor};
use paternoster_model::InSequence;
use paternoster_pipeline::Servable;

use crate::{
    Remote,
    samples::{Ports, Sample},
};

/// Outputs in the model's order.
pub type ResponseTensors = Vec<OutputTensor>;

/// A response to come, or the reason why there is none.
pub(super) type PendingResponse = Pin<Box<dyn Future<Output = Result<ResponseTensors, String>> + Send>>;

/// A model that receives the load.
#[derive(Clone, Debug)]
pub enum Target {
    /// A model in this process, called without a protocol.
    Local(Servable, Arc<Ports>),
    /// A model on a server, over gRPC.
    Remote(Arc<Remote>),
}

impl Target {
    /// Creates a target from a version loaded in this process.
    pub fn local(servable: Servable) -> Self {
        let has_sequences = servable.model().is_some_and(|handle| handle.has_sequences());
        let ports = Arc::new(Ports::of(servable.spec(), has_sequences));
        Self::Local(servable, ports)
    }

    /// Returns the ports of the model.
    pub fn ports(&self) -> &Ports {
        match self {
            Self::Local(_, ports) => ports,
            Self::Remote(remote) => remote.ports(),
        }
    }

    /// Sends a request, which may belong to a sequence. For a local target this happens immediately, not when the
    /// future is first polled. Dropping the future cancels the request. The error is the reason why there is no
    /// response.
    pub fn send(&self, sample: &Sample, sequence: Option<InSequence>) -> PendingResponse {
        match self {
            Self::Local(servable, _) => {
                let inputs = sample.inputs.clone();
                let future = servable.submit(InferRequest { sequence, ..InferRequest::new(sample.rows, inputs) });
                Box::pin(
                    async move { future.await.map(|response| response.outputs).map_err(|error| error.to_string()) },
                )
            }
            Self::Remote(remote) => {
                let (remote, sample) = (Arc::clone(remote), sample.clone());
                Box::pin(async move { remote.infer(&sample, sequence).await })
            }
        }
    }
}
