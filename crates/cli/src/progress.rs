//! A bar on standard error, for what takes longer than a second and is watched.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use transload::{ByteRate, ByteSize, Report, Transfer, TransferError};

use crate::shown::Shown;

/// Shows how far the hops of one command have come.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    watched: bool,
    bar: Option<ProgressBar>,
    /// When the bar of [`Progress::advance`] is due.
    next: Duration,
}

impl Progress {
    /// Starts the clock of the command. A program that reads is shown nothing.
    pub(crate) fn new(json: bool) -> Progress {
        Progress {
            started: Instant::now(),
            watched: !json && io::stderr().is_terminal(),
            bar: None,
            next: QUIET,
        }
    }

    /// Waits for a transfer, with a bar once the command has taken longer than a second.
    ///
    /// # Errors
    /// As the transfer.
    pub(crate) fn wait(
        &mut self,
        mut transfer: Transfer,
        label: &str,
    ) -> Result<Report, TransferError> {
        if !self.watched {
            return transfer.wait();
        }
        let since = Instant::now();
        loop {
            if let Some(result) = transfer.wait_timeout(self.next_look(self.started.elapsed())) {
                self.clear();
                return result;
            }
            if let Some((done, all)) = transfer.progress() {
                let target = ProgressDrawTarget::stderr();
                let times = (self.started.elapsed(), since.elapsed());
                self.show(times, (done, all), label, target);
            }
        }
    }

    /// Shows how far work of several transfers has come, if the command has taken longer than a second.
    pub(crate) fn advance(&mut self, progress: impl FnOnce() -> (u64, u64), label: &str) {
        let elapsed = self.started.elapsed();
        if self.watched && elapsed >= self.next {
            self.next = elapsed + REDRAW;
            let times = (elapsed, elapsed);
            self.show(times, progress(), label, ProgressDrawTarget::stderr());
        }
    }

    /// How long to wait before the bar is drawn (again).
    fn next_look(&self, elapsed: Duration) -> Duration {
        QUIET.saturating_sub(elapsed).max(REDRAW)
    }

    /// Shows the bar; the times are those of the command and of this hop.
    fn show(
        &mut self,
        (elapsed, hop): (Duration, Duration),
        (done, all): (u64, u64),
        label: &str,
        target: ProgressDrawTarget,
    ) {
        if elapsed < QUIET {
            return;
        }
        let bar = self.bar.take().unwrap_or_else(|| bar(all, label, target));
        // Over the whole hop: the bar itself would begin to count when it appears.
        let seconds = hop.as_secs_f64().max(f64::MIN_POSITIVE);
        let of = format!("{} of {}", ByteSize(done), ByteSize(all));
        let (figures, more) = if done < all {
            (format!("{of}  {}", ByteRate(done as f64 / seconds)), "")
        } else {
            // All that is left then is to read both ends again.
            (of, ", checking")
        };
        // Only the position draws, so that one picture shows all three.
        let bar = bar
            .with_prefix(figures)
            .with_message(format!("{}{more}", Shown(label)));
        bar.set_position(done);
        self.bar = Some(bar);
    }

    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(all: u64, label: &str, target: ProgressDrawTarget) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg}  {bar:30}  {prefix}");
    let bar =
        ProgressBar::with_draw_target(Some(all), target).with_message(Shown(label).to_string());
    match style {
        Ok(style) => bar.with_style(style.progress_chars("━╸─")),
        Err(_) => bar,
    }
}

/// A command that ends before this shows no bar.
const QUIET: Duration = Duration::from_secs(1);

/// Ten times a second looks smooth and costs nothing.
const REDRAW: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;

    use super::*;

    fn at(seconds: f64, screen: &InMemoryTerm, progress: &mut Progress) {
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let elapsed = Duration::from_secs_f64(seconds);
        let hop = elapsed / 2;
        progress.show((elapsed, hop), (25 * MB, 100 * MB), "hop 1 of 2", target);
    }

    const MB: u64 = 1_000_000;

    #[test]
    fn a_bar_appears_after_a_second_and_goes_when_the_hop_is_over() {
        let screen = InMemoryTerm::new(5, 100);
        let mut progress = Progress::new(false);
        at(0.9, &screen, &mut progress);
        assert_eq!(screen.contents(), "");
        at(1.0, &screen, &mut progress);
        let shown = screen.contents();
        assert!(
            shown.contains("hop 1 of 2") && shown.contains("23.8 MiB of 95.4 MiB"),
            "{shown}"
        );
        let target = ProgressDrawTarget::hidden();
        let times = (Duration::from_secs(2), Duration::from_secs(2));
        progress.show(times, (100 * MB, 100 * MB), "hop 1 of 2", target);
        let shown = screen.contents();
        assert!(shown.contains("hop 1 of 2, checking"), "{shown}");
        assert!(!shown.contains("/s"), "{shown}");
        progress.clear();
        assert_eq!(screen.contents(), "");
    }

    #[test]
    fn the_rate_is_that_of_the_hop_from_the_first_bar_on() {
        let screen = InMemoryTerm::new(5, 100);
        let mut progress = Progress::new(false);
        at(1.0, &screen, &mut progress);
        let shown = screen.contents();
        // 25 MB in half a second.
        assert!(shown.trim_end().ends_with("50.0 MB/s"), "{shown}");
    }

    #[test]
    fn the_first_look_comes_when_the_second_is_over() {
        let progress = Progress::new(false);
        assert_eq!(progress.next_look(Duration::ZERO), QUIET);
        assert_eq!(progress.next_look(Duration::from_millis(950)), REDRAW);
        assert_eq!(progress.next_look(Duration::from_secs(9)), REDRAW);
    }
}
