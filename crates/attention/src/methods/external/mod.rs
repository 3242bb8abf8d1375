//! `external`: a scorer in another process, in any language: `external:cmd="python3 my.py",density=0.05`.
//!
//! The process gets the keys of the candidates once for a prefix and KV head, then the queries of each step, and answers scores or the
//! selected candidates (`protocol`). Its answers must depend on the message alone, so that records do too. The cost of finding tokens
//! is not known, and recorded as unknown.
//!
//! Command, name and version are named settings, so they are part of the keys of records.

mod command;
mod process;
mod program;
mod protocol;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use self::command::CommandLine;
use self::program::{KnownPrefix, Program, StepQueries};
use self::protocol::{Answers, Hello};
use super::{MethodEntry, ParamInfo};
use crate::cost::Cost;
use crate::kv::KvError;
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK, RESCORE, SECOND, SHARE};
use crate::spec_text::COMMAND;
use crate::types::attention_spec::{AttentionSpec, SpecReason};
use crate::types::positions::Positions;
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::GroupQueries;
use crate::{Budget, HeadPrefix, IndexKey, Method, Params, Role, SelectedTokens, Selection, Step};
use spattn_base::clock;
use spattn_base::error::UsageError;
use spattn_base::privacy;

const TIMEOUT: ParamInfo =
    ParamInfo { key: "timeout", default: "60", about: "seconds that the command may take to start, and for an answer" };

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "external",
    role: Role::Method,
    reference: "your own method, in Python or any language: docs/external-methods.md",
    about: "scores or selects by a command of yours, which runs beside",
    params: &[
        ParamInfo {
            key: COMMAND,
            default: "-",
            about: "the command, in double quotes if it has blanks; external:my.py is short for external:cmd=my.py",
        },
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        PICK,
        SHARE,
        EPSILON,
        DELTA,
        BASE,
        RESCORE,
        SECOND,
        Granularity::INFO,
        Granularity::REDUCE,
        TIMEOUT,
        ParamInfo { key: NAME, default: "-", about: "the name that the command says; another is an error" },
        ParamInfo { key: VERSION, default: "-", about: "the version that the command says; another is an error" },
    ],
    presets: &[],
    build: |params| {
        let command = read_command(params)?;
        let program = Program::of(command)?;
        note(params, &program)?;
        match program.hello().answers {
            Answers::Scores => {
                Ok(Scored::read(params, Commanded(program), Choice::by_logits(Budget::Tokens(64)))?.method())
            }
            Answers::Tokens => Ok(Arc::new(SelectsItself { program, budget: params.budget(Budget::Tokens(64))? })),
        }
    },
};

const NAME: &str = "name";
const VERSION: &str = "version";

fn read_command(params: &mut Params) -> Result<CommandLine, UsageError> {
    let limit = params.take(TIMEOUT.key).unwrap_or_else(|| TIMEOUT.default.to_owned());
    let seconds = limit.parse().ok().filter(|seconds| (0.0..=1e6).contains(seconds) && *seconds > 0.0);
    let seconds = seconds.ok_or_else(|| params.bad_value(TIMEOUT.key, &limit, "a number of seconds above 0"))?;
    let text = params.take(COMMAND).ok_or_else(|| {
        UsageError::new("method `external` has no command")
            .hint("write external:my.py for an executable file, or external:cmd=\"python3 my.py\",density=0.05")
    })?;
    CommandLine::parse(&text, Duration::from_secs_f64(seconds))
        .map_err(|why| UsageError::new(format!("method `external`: the command `{text}` is none: {why}")))
}

/// Makes command, name and version part of the canonical form. A name or version in the spec (as in records) has to match.
fn note(params: &mut Params, program: &Program) -> Result<(), UsageError> {
    let Hello { name, version, .. } = program.hello();
    params.note(COMMAND, &privacy::text(program.command().text()));
    for (key, says) in [(NAME, name), (VERSION, version)] {
        let asked = params.take(key).filter(|asked| asked != says);
        if let Some(asked) = asked {
            let what = format!("the command {} says {key} `{says}`, not `{asked}`", program.command());
            return Err(UsageError::new(what).hint(format!("leave out {key}=, or run that {key} of it")));
        }
        params.note(key, says);
    }
    Ok(())
}

/// Equal commands have equal indexes.
fn index_key(program: &Program) -> IndexKey {
    IndexKey::new(program.command().clone())
}

/// A command that scores candidates.
#[derive(Clone)]
struct Commanded(Arc<Program>);

impl Scorer for Commanded {
    type Index = KnownPrefix;

    /// The command may score in any way, so it does not matter what a layer does to products.
    fn ranks_by_products(&self) -> bool {
        true
    }

    fn index_key(&self) -> IndexKey {
        index_key(&self.0)
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<KnownPrefix, KvError> {
        self.0.learn(prefix)
    }

    fn growth(&self) -> Growth {
        Growth::None("it picks from the prefix alone")
    }

    fn empty(&self, _: KvHeadId, _: Option<&KnownPrefix>) -> KnownPrefix {
        unreachable!("it does not grow")
    }

    fn append(&self, _: &mut KnownPrefix, _: usize, _: &NewTokens<'_>) {
        unreachable!("it does not grow")
    }

    /// 0: the size is not known.
    fn index_bytes(&self, _: &KnownPrefix) -> usize {
        0
    }

    fn counts_costs(&self) -> bool {
        false
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, KnownPrefix>,
        _: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let GroupQueries { layer, kv_head, queries, d, scale, .. } = *queries;
        segment.index.scores(&StepQueries { layer, kv_head, queries, d, scale: scale.factor() })
    }
}

/// A command that selects by itself.
struct SelectsItself {
    program: Arc<Program>,
    budget: Budget,
}

impl Method for SelectsItself {
    /// `None` without candidates.
    type Index = Option<KnownPrefix>;
    type State = ();

    fn unsupported(&self, spec: &AttentionSpec) -> Vec<SpecReason> {
        SpecReason::of_method(spec, true, Positions::Original)
    }

    /// Leaves out the budget, which concerns only a step.
    fn index_key(&self) -> IndexKey {
        let Self { program, budget: _ } = self;
        index_key(program)
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Option<KnownPrefix>, KvError> {
        (!prefix.candidates.is_empty()).then(|| self.program.learn(prefix)).transpose()
    }

    /// 0: the size is not known.
    fn index_bytes(&self, _: &Option<KnownPrefix>) -> usize {
        0
    }

    fn counts_costs(&self) -> bool {
        false
    }

    fn start(&self, _: &Option<KnownPrefix>) {}

    fn select(
        &self,
        step: &Step<'_>,
        known: &Option<KnownPrefix>,
        (): &mut (),
        _: &mut Cost,
    ) -> Result<Selection, KvError> {
        let Some(known) = known else { return Ok(Granularity::QueryHead.nothing(step.group())) };
        let Step { layer, kv_head, queries, d, scale, .. } = *step;
        let further = json!({
            "budget": self.budget.tokens(step.context).min(known.candidates),
            "context": step.context.tokens,
            "generated": step.generated,
            "seed": step.seed,
        });
        let queries = StepQueries { layer, kv_head, queries, d, scale: scale.factor() };
        let mut lists = clock::scoring(|| known.tokens(&queries, further))?;
        let first = step.candidates.start as u32;
        lists.iter_mut().flatten().for_each(|token| *token += first);
        let mut picks: Vec<SelectedTokens> = lists.into_iter().map(SelectedTokens::softmax).collect();
        Ok(match picks.len() == 1 {
            true => Selection::Shared(picks.remove(0)),
            false => Selection::PerHead(picks),
        })
    }
}
