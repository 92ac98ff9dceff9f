//! Graphs from captures, and executables of them. Nodes run one after another in the order of the capture, which
//! respects their dependencies.

use std::sync::Arc;

use cudarc::driver::sys::CUresult::*;
use parking_lot::Mutex;

use crate::{
    calls::entries,
    capture,
    context::{self, Context},
    handles::{Handle, Kind, Table, name},
    stream::{self, Position, Work},
};

const AUTO_FREE_ON_LAUNCH: u64 = 1;
const UPLOAD: u64 = 2;
const USE_NODE_PRIORITY: u64 = 8;

static GRAPHS: Table<Graph> = Table::new(Kind::Graph);
static EXECS: Table<Exec> = Table::new(Kind::Exec);

#[derive(Clone)]
pub(crate) struct Node {
    /// Its name in traces.
    pub what: String,
    pub work: Work,
    /// The nodes that it depends on.
    pub behind: Vec<usize>,
}

struct Graph {
    context: Arc<Context>,
    nodes: Vec<Node>,
}

struct Exec {
    context: Arc<Context>,
    work: Work,
    /// The position after its last launch: launches of one executable run one after another, on any streams.
    last: Mutex<Option<Position>>,
}

/// Creates a graph of nodes; returns its handle.
pub(crate) fn create(context: Arc<Context>, nodes: Vec<Node>) -> Handle {
    GRAPHS.insert(Graph { context, nodes })
}

pub(crate) fn destroy_all(context: &Context) {
    GRAPHS.remove_all(|graph| graph.context.handle == context.handle);
    EXECS.remove_all(|exec| exec.context.handle == context.handle);
}

entries! {
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) |call| {
        context::current()?;
        let from = GRAPHS.get(graph)?;
        call.note(|| {
            let node = |node: &Node| format!("{} behind {:?}", node.what, node.behind);
            let nodes: Vec<_> = from.nodes.iter().map(node).collect();
            format!("{} flags={flags} nodes=[{}]", name(graph), nodes.join("; "))
        });
        if flags & !(AUTO_FREE_ON_LAUNCH | UPLOAD | USE_NODE_PRIORITY) != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let works: Vec<Work> = from.nodes.iter().map(|node| node.work.clone()).collect();
        let work = Arc::new(move || works.iter().try_for_each(|work| work()));
        *exec = EXECS.insert(Exec { context: from.context.clone(), work, last: Mutex::new(None) });
        call.note(|| format!("-> {}", name(*exec)));
        Ok(())
    }

    fn cuGraphLaunch(exec: Handle, stream: Handle) |call| {
        call.note(|| format!("{} {}", name(exec), name(stream)));
        let stream = stream::get(stream)?;
        let exec = EXECS.get(exec)?;
        if exec.context.handle != stream.context.handle {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if let Some(capture) = capture::of(&stream) {
            return capture.add(&stream, "graph", exec.work.clone());
        }
        capture::refuse_implicit(&stream)?;
        let mut last = exec.last.lock();
        if let Some(last) = last.take() {
            stream.wait_for(last);
        }
        *last = Some(stream.enqueue_in_order(exec.work.clone()));
        Ok(())
    }

    fn cuGraphUpload(exec: Handle, stream: Handle) |call| {
        call.note(|| format!("{} {}", name(exec), name(stream)));
        stream::get(stream)?;
        EXECS.get(exec)?;
        Ok(())
    }

    fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) |call| {
        call.note(|| name(graph));
        let graph = GRAPHS.get(graph)?;
        // Nodes have no handles, because nothing here works on single nodes.
        if !nodes.is_null() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        *count = graph.nodes.len();
        Ok(())
    }

    fn cuGraphDestroy(graph: Handle) |call| {
        call.note(|| name(graph));
        GRAPHS.remove(graph)?;
        Ok(())
    }

    fn cuGraphExecDestroy(exec: Handle) |call| {
        call.note(|| name(exec));
        EXECS.remove(exec)?;
        Ok(())
    }
}
