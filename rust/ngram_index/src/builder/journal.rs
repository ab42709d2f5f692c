//! What a build has finished, kept beside its runs so that the same command goes on after a kill.
//!
//! The journal is one JSON file that is replaced whole, after the run that it newly names is on disk. Files of the work
//! folder that it does not name are left over from a kill and are removed.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::output::STAGED;
use super::place::Mark;
use super::run::RunInfo;
use crate::error::{Error, Result};

const NAME: &str = "journal.json";
const LOCK: &str = "lock";
const VERSION: u32 = 1;

/// The state of a build.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    version: u32,
    /// What the result depends on: settings and inputs.
    identity: Value,
    mark: Mark,
    next_run: u64,
    runs: Vec<RunInfo>,
}

/// The work folder of one build.
pub(crate) struct Journal {
    folder: PathBuf,
    state: State,
    /// Whether runs and journal shall outlive a loss of power.
    durable: bool,
    /// Locked while this build runs.
    _lock: Option<File>,
}

impl Journal {
    /// A folder that is kept for a later build when this one is stopped. Goes on with what is there, unless `restart`.
    pub fn open(folder: &Path, identity: &str, restart: bool) -> Result<Self> {
        let identity: Value = serde_json::from_str(identity)
            .map_err(|error| Error::invalid("identity", format!("must be JSON: {error}")))?;
        match fs::create_dir(folder) {
            Ok(()) => (),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => check_ours(folder)?,
            Err(error) => return Err(Error::io("write", folder, error)),
        }
        let lock = lock(folder)?;
        let path = folder.join(NAME);
        if restart && path.exists() {
            fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
        }
        let state = match read(&path)? {
            Some(state) => {
                compare(folder, &state.identity, &identity)?;
                state
            }
            None => State::new(identity),
        };
        let journal = Self {
            folder: folder.to_owned(),
            state,
            durable: true,
            _lock: Some(lock),
        };
        journal.check_runs()?;
        journal.remove_leftovers()?;
        Ok(journal)
    }

    /// A folder that is used once.
    pub fn temporary(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            state: State::new(Value::Null),
            durable: false,
            _lock: None,
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn runs(&self) -> &[RunInfo] {
        &self.state.runs
    }

    /// Whether runs and journal shall outlive a loss of power.
    pub fn durable(&self) -> bool {
        self.durable
    }

    /// What the runs cover.
    pub fn mark(&self) -> &Mark {
        &self.state.mark
    }

    /// A name for the next run.
    pub fn next_run(&mut self) -> PathBuf {
        self.state.next_run += 1;
        self.folder.join(format!("{:06}.run", self.state.next_run))
    }

    /// A run is complete, and all runs together cover what `mark` says.
    pub fn add(&mut self, run: RunInfo, mark: Mark) -> Result<()> {
        self.state.runs.push(run);
        self.state.mark = mark;
        self.save()
    }

    /// One run holds what the first `count` runs held.
    pub fn replace(&mut self, count: usize, run: RunInfo) -> Result<()> {
        let old: Vec<RunInfo> = self.state.runs.drain(..count).collect();
        self.state.runs.push(run);
        self.save()?;
        for run in old {
            let path = self.folder.join(&run.name);
            fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
        }
        Ok(())
    }

    fn save(&self) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        let path = self.folder.join(NAME);
        let temporary = self.folder.join(format!("{NAME}.tmp"));
        let content = serde_json::to_vec(&self.state).map_err(|error| Error::io("write", &path, error.into()))?;
        let write = || {
            let mut file = File::create(&temporary)?;
            file.write_all(&content)?;
            file.sync_data()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(|error| Error::io("write", &path, error))
    }

    fn check_runs(&self) -> Result<()> {
        for run in &self.state.runs {
            let path = self.folder.join(&run.name);
            let bytes = fs::metadata(&path).map_err(|error| Error::io("open", &path, error))?.len();
            if bytes != run.bytes {
                let message = format!("{} has {bytes} bytes, expected {}", path.display(), run.bytes);
                return Err(Error::invalid("--restart", message + "; start over with --restart"));
            }
        }
        Ok(())
    }

    fn remove_leftovers(&self) -> Result<()> {
        let known: HashSet<&str> = self.state.runs.iter().map(|run| run.name.as_str()).chain([NAME, LOCK]).collect();
        let failed = |error| Error::io("clean up", &self.folder, error);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if is_ours(&name) && !known.contains(name.to_str().unwrap_or_default()) {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Remove the folder and all that is in it.
    pub fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.folder).map_err(|error| Error::io("remove", &self.folder, error))
    }
}

/// Whether a build in this folder has finished a run.
pub(super) fn exists(folder: &Path) -> bool {
    folder.join(NAME).exists()
}

impl State {
    fn new(identity: Value) -> Self {
        Self {
            version: VERSION,
            identity,
            mark: Mark::default(),
            next_run: 0,
            runs: Vec::new(),
        }
    }
}

fn read(path: &Path) -> Result<Option<State>> {
    let content = match fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path, error)),
    };
    match serde_json::from_slice::<State>(&content) {
        Ok(state) if state.version == VERSION => Ok(Some(state)),
        Ok(state) => Err(restart(
            path,
            &format!("has version {}, expected {VERSION}", state.version),
        )),
        Err(error) => Err(restart(path, &format!("is not a journal: {error}"))),
    }
}

fn restart(path: &Path, problem: &str) -> Error {
    let message = format!("{} {problem}; start over with --restart", path.display());
    Error::invalid("--restart", message)
}

/// Whether a build made a file of this name.
fn is_ours(name: &OsStr) -> bool {
    let name = name.to_str().unwrap_or_default();
    name == LOCK || name.starts_with(NAME) || name.ends_with(".run") || name.starts_with(STAGED)
}

/// Keep out of a folder that is somebody else's: it is removed in the end.
fn check_ours(folder: &Path) -> Result<()> {
    let failed = |error| Error::io("look into", folder, error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !is_ours(&name) {
            let message = format!(
                "{} is in the way: it holds {}; move it",
                folder.display(),
                name.display()
            );
            return Err(Error::invalid("output", message));
        }
    }
    Ok(())
}

/// Refuse to go on with other settings or inputs, naming the first that differs.
fn compare(folder: &Path, old: &Value, new: &Value) -> Result<()> {
    if old == new {
        return Ok(());
    }
    let keys = |value: &Value| value.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let differs = keys(old).into_iter().chain(keys(new)).find(|key| old.get(key) != new.get(key));
    let key = differs.unwrap_or_else(|| "all".to_owned());
    let show = |value: &Value| {
        let text = value.get(&key).unwrap_or(value).to_string();
        text.chars().take(200).collect::<String>()
    };
    let problem = format!(
        "holds an unfinished build with other settings or inputs: {key} was {}, now {}; run its command again",
        show(old),
        show(new)
    );
    Err(Error::invalid(
        "--restart",
        format!("{} {problem}, or start over with --restart", folder.display()),
    ))
}

/// Keep a second build out of the folder.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let file = File::options().create(true).write(true).truncate(false).open(&path);
    let file = file.map_err(|error| Error::io("write", &path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let message = format!(
                "{} is in use by another build; wait for it or stop it",
                folder.display()
            );
            Err(Error::invalid("output", message))
        }
        Err(TryLockError::Error(error)) => Err(Error::io("lock", &path, error)),
    }
}
