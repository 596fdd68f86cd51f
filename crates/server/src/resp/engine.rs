//! What the server lets others tell about the engine below, without knowing it.
//!
//! INFO, CONFIG GET → [`EngineInfo`] ← CONFIG SET; the program that wires server and engine together implements it.

/// How what is below stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// It takes writes.
    #[default]
    Running,
    /// It is full: it takes what gives space back, and reads.
    Full,
    /// It takes no writes any more, for this cause, until it is started again.
    Stopped(String),
}

impl Health {
    /// Its name, as INFO and metrics show it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Full => "full",
            Self::Stopped(_) => "stopped",
        }
    }

    /// Why it takes no writes; nothing while it does.
    pub fn cause(&self) -> &str {
        match self {
            Self::Running => "",
            Self::Full => "the store is full: writes are refused until space is given back",
            Self::Stopped(cause) => cause,
        }
    }
}

/// One line of INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoLine {
    /// Heading that it stands under, such as `Engine`; lines of one section come one after another.
    pub section: String,
    /// Left of the colon.
    pub key: String,
    /// Right of the colon.
    pub value: String,
}

/// Statistics and run-time settings of what is below the key-value face.
///
/// Called on event loops: answers must not take long.
pub trait EngineInfo: Send + Sync {
    /// How the engine stands. Costs nothing to speak of.
    fn health(&self) -> Health {
        Health::Running
    }

    /// Lines for INFO, section after section.
    fn info(&self) -> Vec<InfoLine>;

    /// All settings with their values, for CONFIG GET. Names are lower case.
    fn settings(&self) -> Vec<(String, String)>;

    /// Changes a setting, for CONFIG SET; false if there is none of this name. Is asked about `appendfsync` too,
    /// after the server has acted on it.
    ///
    /// # Errors
    /// Why the value cannot be set, for people.
    fn set(&self, name: &str, value: &str) -> std::result::Result<bool, String>;

    /// Starts a backup in the background, to the place that the operator has chosen, for ESKER.BACKUP; how it ends
    /// stands in INFO.
    ///
    /// # Errors
    /// Why there can be none now, for people.
    fn backup(&self) -> std::result::Result<(), String> {
        Err("this store makes no backups".into())
    }

    /// Clients have given up much memory: the allocator need not keep it. Not called on event loops.
    fn give_memory_back(&self) {}

    /// Takes certificates, passwords, tokens and users anew, for ESKER.RELOAD and ACL LOAD.
    ///
    /// # Errors
    /// What cannot be read, for people; then nothing changes that depends on it.
    fn reload(&self) -> std::result::Result<(), String> {
        Err("this server has nothing to read again".into())
    }

    /// Starts a check in the background, for ESKER.CHECK: of what opening reads, and with `deep` of every value. How
    /// far it is stands in INFO, what it found in [`EngineInfo::check_report`].
    ///
    /// # Errors
    /// Why there can be none now, for people.
    fn check(&self, deep: bool) -> std::result::Result<(), String> {
        let _ = deep;
        Err("this store has nothing to check".into())
    }

    /// What the last check found, line by line, for ESKER.CHECK STATUS.
    fn check_report(&self) -> String {
        "status none\n".into()
    }

    /// Reads and verifies everything on the device once, in the background, for ESKER.SCRUB. How far it is stands in
    /// INFO, what it found in [`EngineInfo::scrub_report`].
    ///
    /// # Errors
    /// Why it cannot now, for people.
    fn scrub(&self) -> std::result::Result<(), String> {
        Err("this store has nothing to scrub".into())
    }

    /// What the last scrub found, line by line, for ESKER.SCRUB STATUS.
    fn scrub_report(&self) -> String {
        "status none\n".into()
    }

    /// Cleans what holds dead data, in the background, for ESKER.COMPACT. How far it is stands in INFO, what it gained
    /// in [`EngineInfo::compact_report`].
    ///
    /// # Errors
    /// Why it cannot now, for people.
    fn compact(&self) -> std::result::Result<(), String> {
        Err("this store has nothing to compact".into())
    }

    /// What the last compaction gained, line by line, for ESKER.COMPACT STATUS.
    fn compact_report(&self) -> String {
        "status none\n".into()
    }

    /// Has the store take in the space of a device that has become longer, in the background, for ESKER.GROW; how it
    /// ends stands in INFO.
    ///
    /// # Errors
    /// Why it cannot now, for people.
    fn grow(&self) -> std::result::Result<(), String> {
        Err("this store is on no device".into())
    }
}

/// An engine with nothing to tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEngineInfo;

impl EngineInfo for NoEngineInfo {
    fn info(&self) -> Vec<InfoLine> {
        Vec::new()
    }

    fn settings(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn set(&self, _name: &str, _value: &str) -> std::result::Result<bool, String> {
        Ok(false)
    }
}
