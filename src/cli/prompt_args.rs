//! Arguments of commands that make prompts without running a model: the tasks, and the model of the
//! tokenizer.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::numbers;
use super::setup::{find_data, system_prompt};
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::{Tokenizer, TokenizerOptions};
use spattn_tasks::{Positions, Task, TaskOptions, resolve};

/// Which prompts, and for which model.
#[derive(Debug, Args)]
pub(super) struct PromptArgs {
    /// Task or group; may be repeated
    ///
    /// Example: --task ruler/vt --task ruler_reworded
    #[arg(short = 't', long = "task", value_name = "TASK", required = true)]
    tasks: Vec<String>,

    /// Seed of the examples
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", default_value_t = 42, value_parser = numbers::seed, allow_negative_numbers = true)]
    pub seed: u64,

    /// Model whose tokenizer counts: builtin, a folder, a GGUF file, or a hub id
    ///
    /// Example: --model ./checkpoint
    #[arg(long, value_name = "builtin|DIR|HUB_ID[@REV]", default_value = "builtin")]
    model: String,

    /// Folder, or data set on the hub, with essays, word lists, SQuAD and HotpotQA
    ///
    /// Example: --data data, --data hub:org/ruler-assets@main
    #[arg(long, value_name = "DIR|hub:HUB_ID[@REV]")]
    data: Option<PathBuf>,

    /// Placement of needles and answers in generated examples: varied, or published (RULER's fixed shuffles)
    ///
    /// Example: --positions published
    #[arg(long, value_name = "HOW", default_value = "varied")]
    positions: Positions,

    /// Take plain text even if the model has a chat template
    ///
    /// Example: --model meta-llama/Llama-3.2-1B --no-chat
    #[arg(long)]
    no_chat: bool,

    /// System prompt for the model's chat template: a text, or @FILE to read it from a file
    ///
    /// It counts as part of the length; rows hold the user's turn alone.
    ///
    /// Example: --system-prompt 'Answer in one word.', --system-prompt @system.txt
    #[arg(long, value_name = "TEXT|@FILE", conflicts_with = "no_chat")]
    system_prompt: Option<String>,
}

/// The parts of a model that making prompts needs.
pub(super) struct PromptModel {
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// The most tokens that the model reads.
    pub context: usize,
}

impl PromptArgs {
    /// Opens the tasks.
    ///
    /// # Errors
    /// A [`UsageError`](spattn_base::error::UsageError) if a task is unknown or its data are missing.
    pub fn tasks(&self) -> Result<Vec<Box<dyn Task>>> {
        let data = self.data.as_deref().map(find_data).transpose()?;
        let options = TaskOptions { data: data.map(|d| d.folder), positions: self.positions, ..TaskOptions::default() };
        resolve(&self.tasks, &options)
    }

    /// Loads the tokenizer and prints notes on it. Weights are neither needed nor downloaded.
    ///
    /// # Errors
    /// If there is no such model, or its files cannot be read.
    pub fn model(&self) -> Result<PromptModel> {
        let system = system_prompt(self.system_prompt.as_deref())?;
        let texts = ModelSource::parse(&self.model)?.resolve_texts()?;
        let options = TokenizerOptions { chat: !self.no_chat, system, ..TokenizerOptions::default() };
        let config = texts.config()?;
        let tokenizer = Tokenizer::load(&texts, &config, options)?;
        let notes = [&texts.notes[..], &config.notes, tokenizer.notes()].into_iter().flatten();
        notes.for_each(|note| eprintln!("note: {note}"));
        Ok(PromptModel { tokenizer, context: config.context_limit() })
    }
}
