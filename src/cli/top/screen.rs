//! A terminal that is drawn over and over, and restored in the end.

use std::io::{self, Stdout, Write, stdin, stdout};

use rustix::{
    process::{Signal, getpid, kill_process},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};

use super::view::Line;

/// Enters the alternate screen and hides the cursor, and the opposite. Sequences of xterm that terminals share.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Size of a terminal that does not tell it.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// The terminal of the standard output, until it is dropped.
pub(super) struct Screen {
    output: Stdout,
    /// The settings of the terminal of the standard input, if it is one.
    saved: Option<Termios>,
    has_colors: bool,
}

impl Screen {
    /// Takes over the terminal: what was on it comes back in the end. Keys are not echoed meanwhile.
    ///
    /// # Errors
    /// If the terminal cannot be written.
    pub(super) fn enter() -> io::Result<Self> {
        let saved = tcgetattr(stdin()).ok();
        if let Some(saved) = &saved {
            let mut silent = saved.clone();
            // Signals of keys stay.
            silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
            let _ = tcsetattr(stdin(), OptionalActions::Now, &silent);
        }
        let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut screen = Self { output: stdout(), saved, has_colors };
        screen.write(ENTER)?;
        Ok(screen)
    }

    /// Returns the columns and lines of the terminal.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(&self.output).ok().map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        size.filter(|&(columns, lines)| columns > 0 && lines > 0).unwrap_or(USUAL_SIZE)
    }

    /// Replaces what is shown.
    ///
    /// # Errors
    /// If the terminal cannot be written.
    pub(super) fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        for (number, line) in lines.iter().enumerate() {
            // No line break after the last line, which would scroll.
            text += if number > 0 { "\r\n" } else { "" };
            match line.style.filter(|_| self.has_colors) {
                Some(style) => text.extend([style.sequence(), &line.text, "\x1b[0m"]),
                None => text += &line.text,
            }
            text += "\x1b[K";
        }
        text += "\x1b[J";
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.output.write_all(text.as_bytes())?;
        self.output.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.write(LEAVE);
        if let Some(saved) = &self.saved {
            // Drops the keys that were pressed meanwhile: the shell would run them.
            let _ = tcsetattr(stdin(), OptionalActions::Flush, saved);
        }
    }
}

/// Stops this process until the shell continues it.
pub(super) fn suspend() {
    let _ = kill_process(getpid(), Signal::STOP);
}
