//! Targets of a load.

use std::{future::Future, pin::Pin, sync::Arc};

use crate::{
    bench::{
        Remote,
        samples::{Ports, Sample},
    },
    executor::{InferRequest, ModelHandle, OutputTensor},
};

/// Outputs in the model's order.
pub type Answer = Vec<OutputTensor>;

/// A model that receives the load.
#[derive(Clone, Debug)]
pub enum Target {
    /// A model in this process, called without a protocol.
    Local(Arc<ModelHandle>, Arc<Ports>),
    /// A model on a server, over gRPC.
    Remote(Arc<Remote>),
}

impl Target {
    /// Creates a target from a version loaded in this process.
    pub fn local(handle: Arc<ModelHandle>) -> Self {
        let ports = Arc::new(Ports::of(handle.spec()));
        Self::Local(handle, ports)
    }

    /// Returns the ports of the model.
    pub fn ports(&self) -> &Ports {
        match self {
            Self::Local(_, ports) => ports,
            Self::Remote(remote) => remote.ports(),
        }
    }

    /// Sends a request. For a local target this happens immediately, not when the future is first polled. Dropping the
    /// future cancels the request. The error is the reason why there is no answer.
    pub fn send(&self, sample: &Sample) -> Pin<Box<dyn Future<Output = Result<Answer, String>> + Send>> {
        match self {
            Self::Local(handle, _) => {
                let future =
                    handle.submit(InferRequest::new(sample.rows, sample.inputs.iter().cloned().map(Some).collect()));
                Box::pin(
                    async move { future.await.map(|response| response.outputs).map_err(|error| error.to_string()) },
                )
            }
            Self::Remote(remote) => {
                let (remote, sample) = (Arc::clone(remote), sample.clone());
                Box::pin(async move { remote.infer(&sample).await })
            }
        }
    }
}
