//! Progress bars on stderr for long work; silent where stderr is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that counts bytes up to `total`.
pub fn bytes(what: &'static str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {bar:32} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// A bar that counts things up to `total`.
pub fn count(what: &'static str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {bar:32} {human_pos}/{human_len} {per_sec} {eta}")
}

/// A spinner that counts things whose number is not known beforehand.
pub fn spinner(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
    spinner.set_style(style("{spinner} {msg} {human_pos} {per_sec}"));
    spinner.set_message(what);
    spinner
}

fn bar(what: &'static str, total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(4));
    bar.set_style(style(template));
    bar.set_message(what);
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}
