//! MONITOR: from now on the client is told every command that is run.

use crate::resp::commands::{Call, Outcome};

/// A client that monitors already is answered too, where Redis says nothing: its replies stay in step.
pub(crate) fn monitor(call: &mut Call<'_>) -> Outcome {
    if call.session.monitor.is_none() {
        call.session.monitor = Some(call.shared.monitors.enter(call.session.client.event_loop));
    }
    call.reply.ok();
    Ok(())
}
