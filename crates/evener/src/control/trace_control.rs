//! The control loop's part in tracing and logging: sets the data plane's filter to exactly the
//! events that readers want.

use std::sync::Arc;

use evener_dataplane::EngineError;
use evener_dataplane::events::TraceFilter;
use tokio::sync::mpsc;

use super::executor::Executor;
use crate::cli::ClientArg;
use crate::config::Config;
use crate::record::Traced;
use crate::record::{AccessLogFile, Recorder, TRACES_MAX, TableNames, TraceReader};

pub(super) struct TraceControl {
    pub(super) recorder: Arc<Recorder>,
    /// Started when the data plane first has events to report.
    listener: Option<TraceReader>,
    /// Trace filter of the data plane. `None` at first: the filter is unknown, since an earlier
    /// daemon may have set one.
    watched: Option<TraceFilter>,
}

impl TraceControl {
    pub(super) fn new(recorder: Arc<Recorder>) -> TraceControl {
        TraceControl { recorder, listener: None, watched: None }
    }
}

/// Opens the access log of a file, if it has one.
///
/// # Errors
/// If the log can't be opened.
pub(super) fn open_log(config: &Config) -> Result<Option<AccessLogFile>, String> {
    config.log.access.as_ref().map(AccessLogFile::open).transpose()
}

impl Executor {
    /// Sets the names with which events are reported.
    pub(super) fn update_names(&self, names: TableNames) {
        self.trace.recorder.name(names);
    }

    /// Sets the data plane's filter if the wanted events have changed. Does nothing while the
    /// engine is away.
    ///
    /// # Errors
    /// If the engine refuses. The next call retries.
    pub(super) fn watch(&mut self) -> Result<(), EngineError> {
        let wanted = self.trace.recorder.wanted();
        if self.trace.watched.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let Some(engine) = self.engine.here() else { return Ok(()) };
        if self.trace.listener.is_none() && wanted != TraceFilter::default() {
            let (events, recorder) = (engine.events()?, Arc::clone(&self.trace.recorder));
            let none = |source| EngineError::System { what: "a thread for events".to_owned(), source };
            self.trace.listener = Some(TraceReader::start(events, recorder).map_err(none)?);
        }
        engine.watch(&wanted)?;
        self.trace.watched = Some(wanted);
        Ok(())
    }

    /// Replaces the access log, or ends it, and adapts the data plane's filter.
    ///
    /// # Errors
    /// If the log's thread can't be started, or if the engine refuses the filter.
    pub(super) fn set_access_log(&mut self, log: Option<AccessLogFile>) -> Result<(), String> {
        self.trace.recorder.log(log)?;
        self.watch().map_err(|error| error.to_string())
    }

    /// Opens the log again, after a log rotation.
    ///
    /// # Errors
    /// If the file can't be opened: the old log then stays open. Also as
    /// [`Executor::set_access_log`].
    pub(super) fn reopen_log(&mut self) -> Result<(), String> {
        let log = open_log(&self.config)?;
        self.set_access_log(log)
    }

    /// Traces a client until the receiver is dropped.
    ///
    /// # Errors
    /// If there are too many traces, or if the engine refuses the filter.
    pub(super) fn follow(&mut self, client: ClientArg) -> Result<mpsc::Receiver<Traced>, String> {
        let lines = self.trace.recorder.follow(client).ok_or_else(|| {
            format!("{TRACES_MAX} traces run already, and there can't be more: end one of them")
        })?;
        self.watch().map_err(|error| format!("failed to set the trace filter of the data plane: {error}"))?;
        Ok(lines)
    }

    /// Ends all tracing. Events that the data plane has already reported are still recorded.
    pub(super) fn stop_tracing(&mut self) {
        let nothing = TraceFilter::default();
        if self.trace.watched.as_ref().is_some_and(|watched| *watched != nothing)
            && let Some(Err(error)) = self.engine.here().map(|engine| engine.watch(&nothing))
        {
            tracing::warn!(%error, "failed to stop the trace; the data plane still records packets");
        }
        drop(self.trace.listener.take());
        self.trace.recorder.finish();
    }
}
