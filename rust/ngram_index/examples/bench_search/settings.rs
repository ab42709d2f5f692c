//! What to measure, as the benchmark's script asks for it.

use std::path::PathBuf;

use ngram_index::reader::Backing;
use ngram_index::search::{Mode, Params};
use serde::Deserialize;

/// The whole request, JSON on the standard input.
#[derive(Deserialize)]
pub struct Request {
    pub index: PathBuf,
    /// How the index is held: `mmap`, `populate` or `copy`.
    pub backing: String,
    /// Texts to search, each order - 1 tokens of context and then what follows; drawn from the index if there are none.
    #[serde(default)]
    pub texts: Vec<Vec<u32>>,
    /// Texts to draw when there are none.
    pub rounds: usize,
    pub seed: u64,
    /// How often each setting is measured, one after the other.
    pub passes: usize,
    pub settings: Vec<Setting>,
    /// Rounds to search in a hash-map trie of the same counts; 0 for none.
    pub baseline_rounds: usize,
    /// Print the rounds instead of measuring them, as deep and wide as the settings need.
    #[serde(default)]
    pub export: bool,
}

/// One way to search.
#[derive(Clone, Deserialize)]
pub struct Setting {
    pub name: String,
    /// `survival` or `reference`.
    pub mode: String,
    pub depth: usize,
    pub width: usize,
    pub beam: usize,
    pub budget: usize,
    /// Search every round twice and time the second.
    #[serde(default)]
    pub hot: bool,
    /// Proposals have transition scores.
    #[serde(default)]
    pub transitions: bool,
}

impl Setting {
    pub fn params(&self) -> Result<Params, String> {
        let mode = match self.mode.as_str() {
            "survival" => Mode::Survival,
            "reference" => Mode::Reference,
            other => return Err(format!("mode must be survival or reference, got {other}")),
        };
        Ok(Params {
            mode,
            node_budget: self.budget,
            beam_width: self.beam,
            ..Params::default()
        })
    }
}

impl Request {
    pub fn backing(&self) -> Result<Backing, String> {
        match self.backing.as_str() {
            "mmap" => Ok(Backing::Mmap),
            "populate" => Ok(Backing::Populate),
            "copy" => Ok(Backing::Copy),
            other => Err(format!("backing must be mmap, populate or copy, got {other}")),
        }
    }
}
