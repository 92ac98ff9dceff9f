//! `paternoster top`: the models of a running server in a terminal, from its `/v2/overview`.
//!
//! `client` asks the server, `view` makes lines of the response, and `screen` controls the terminal. Where the output
//! is no terminal, the lines are printed once per interval.

mod client;
mod screen;
mod view;

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use clap::{Args, ValueEnum};
use paternoster_frontend::http::overview_response::OverviewResponse;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval},
};

use self::{
    client::{Client, ClientError},
    screen::Screen,
    view::View,
};

/// Shortest and longest time between two looks, in seconds. The server computes the figures twice a second.
const INTERVALS_S: std::ops::RangeInclusive<f64> = 0.5..=3600.0;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  paternoster top
  paternoster top --url gpu-3:8000 --sort p99
  paternoster top --model resnet50 --once

Ctrl-C ends it. A server that goes away is asked on. With --once, the exit status is 1 if it cannot be asked.")]
pub(super) struct TopArgs {
    /// Address of the server's HTTP port
    #[arg(long, value_name = "URL", default_value = "http://localhost:8000")]
    url: String,
    /// Time between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Print the figures once and end
    #[arg(long)]
    once: bool,
    /// Order of the models
    #[arg(long, value_enum, default_value = "attention")]
    sort: Order,
    /// Show only the versions of this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

/// Orders of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Those that need attention first, then those that serve
    Attention,
    /// By name
    Name,
    /// The most requests per second first
    Requests,
    /// The slowest first
    P99,
    /// The largest first
    Memory,
}

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum TopError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot start: {0}")]
    Start(io::Error),
    #[error("cannot print: {0}")]
    Output(io::Error),
}

fn parse_interval(given: &str) -> Result<Duration, String> {
    let seconds = given.parse::<f64>().ok().filter(|seconds| INTERVALS_S.contains(seconds));
    let (shortest, longest) = INTERVALS_S.into_inner();
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("expected {shortest} to {longest} seconds"))
}

/// Shows the models until a signal ends it, or once.
///
/// # Errors
/// If the address is malformed or the figures cannot be printed; with `--once`, also if the server cannot be asked.
pub(super) fn run(args: &TopArgs) -> Result<(), TopError> {
    let client = Client::new(&args.url, args.model.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(TopError::Start)?;
    match runtime.block_on(show(args, &client)) {
        // The reader has seen enough, such as `head`.
        Err(TopError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        ended => ended,
    }
}

async fn show(args: &TopArgs, client: &Client) -> Result<(), TopError> {
    let view = View { url: client.url(), order: args.sort, model: args.model.as_deref() };
    if args.once {
        let answer = client.ask().await?;
        return print(&view.plain(&Ok(answer)));
    }
    let mut signals = Signals::listen().map_err(TopError::Start)?;
    let mut ticks = interval(args.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    if io::stdout().is_terminal() {
        follow_on_screen(&view, client, &mut signals, &mut ticks).await
    } else {
        follow(&view, client, &mut signals, &mut ticks).await
    }
}

/// Prints the figures once per interval, as text, until a signal ends it.
async fn follow(
    view: &View<'_>,
    client: &Client,
    signals: &mut Signals,
    ticks: &mut tokio::time::Interval,
) -> Result<(), TopError> {
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = signals.ends.recv() => return Ok(()),
        }
        tokio::select! {
            answer = client.ask() => print(&view.plain(&answer))?,
            () = signals.ends.recv() => return Ok(()),
        }
    }
}

/// What is on the screen.
struct Latest {
    answer: Option<OverviewResponse>,
    /// When it came.
    at: Instant,
    /// Why there is no newer one.
    fault: Option<ClientError>,
}

/// Shows the figures on a terminal, until a signal ends it.
async fn follow_on_screen(
    view: &View<'_>,
    client: &Client,
    signals: &mut Signals,
    ticks: &mut tokio::time::Interval,
) -> Result<(), TopError> {
    let mut screen = Screen::enter().map_err(TopError::Output)?;
    let mut latest = Latest { answer: None, at: Instant::now(), fault: None };
    loop {
        tokio::select! {
            asked = async {
                ticks.tick().await;
                client.ask().await
            } => match asked {
                Ok(answer) => latest = Latest { answer: Some(answer), at: Instant::now(), fault: None },
                Err(fault) => latest.fault = Some(fault),
            },
            // The size of the terminal changed.
            _ = signals.resized.recv() => {}
            _ = signals.suspended.recv() => {
                drop(screen);
                screen::suspend();
                screen = Screen::enter().map_err(TopError::Output)?;
            }
            () = signals.ends.recv() => return Ok(()),
        }
        let lines = view.on_screen(latest.answer.as_ref(), latest.fault.as_ref(), latest.at.elapsed(), screen.size());
        screen.draw(&lines).map_err(TopError::Output)?;
    }
}

fn print(lines: &[String]) -> Result<(), TopError> {
    let mut text = lines.join("\n");
    text.push('\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(TopError::Output)
}

/// The signals that it reacts to.
struct Signals {
    ends: Ends,
    resized: Signal,
    suspended: Signal,
}

/// The signals that end the program.
struct Ends {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let ends = Ends {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        };
        let resized = signal(SignalKind::window_change())?;
        Ok(Self { ends, resized, suspended: signal(SignalKind::from_raw(libc::SIGTSTP))? })
    }
}

impl Ends {
    /// Waits for one of them.
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_of_seconds_within_bounds() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for refused in ["0", "-1", "NaN", "1s", "", "3601"] {
            assert_eq!(parse_interval(refused), Err("expected 0.5 to 3600 seconds".to_owned()), "{refused}");
        }
    }
}
