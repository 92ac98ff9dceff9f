//! The front ends over real sockets, with real threads and small programs behind them.

mod backlog;
mod bench;
mod budgets;
mod health;
mod hostile;
mod http;
mod infer;
mod limits;
mod management;
mod reflection;
mod repository;
mod shutdown;
mod spans;
mod stream;
mod support;
mod tls;
mod traces;
