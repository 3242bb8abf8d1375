//! Tasks over a grid of lengths and depths: needles, passkeys, key-value pairs and lines.
//!
//! An example asks for one thing at a stated depth of its context. A sample is drawn once and has one example for each depth.
//! Needles and passkeys move through the same filler; of pairs and lines, each example asks for the one at its depth. All depths
//! of a sample thus share a context or the beginning of one, which the model prefills once.
//!
//! A task may have options: `NAME:steps=5`, `NAME:depths=0+50,pairs=75`. The recorded name has those that are not the default. To
//! add a base, write a file with a [`Base`](base::Base) and add a line to `BASES`.

mod base;
mod depths;
mod needle;
mod passkey;
mod records;

use std::path::PathBuf;

use anyhow::Result;

use self::base::{Base, Options, Setting};
use super::metrics::Metric;
use super::ruler::fit::{self, Draft, Request};
use super::seed::example_seed;
use super::{Example, Family, Positions, PromptCounter, PromptRules, Task, TaskInfo, TaskOptions, digest};
use spattn_base::error::UsageError;

/// Every base, in the order in which they are listed.
static BASES: &[&Base] = &[&needle::BASE, &passkey::BASE, &records::PAIRS, &records::LINES];

/// The base of the task or group `name`.
fn find_base(name: &str) -> Option<&'static Base> {
    let is = |base: &&&Base| name == base.name || name.strip_prefix(base.name).is_some_and(|n| n.starts_with('/'));
    BASES.iter().find(is).copied()
}

/// The family: `needle/PART`, `passkey/PART`, `kv_retrieval`, `longeval_lines`, and the groups `needle`, `passkey`.
pub struct Grids;

impl Family for Grids {
    fn catalog(&self) -> Vec<TaskInfo> {
        BASES.iter().flat_map(|base| (base.members)().into_iter().map(|member| base.info(member))).collect()
    }

    fn groups(&self) -> Vec<String> {
        let several = BASES.iter().filter(|base| (base.members)().iter().all(|m| m.name != base.name));
        several.map(|base| base.name.to_owned()).collect()
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        let (bare, options) = name.split_once(':').unwrap_or((name, ""));
        let base = find_base(bare)?;
        let members: Vec<String> = (base.members)().into_iter().map(|m| m.name).collect();
        let meant: Vec<String> = members.into_iter().filter(|m| bare == base.name || m == bare).collect();
        // Invalid options are reported when the task is made.
        let options = match Options::parse(base, options) {
            Ok(options) => options.canonical(base, |path| path.display().to_string()),
            Err(_) => format!(":{options}"),
        };
        (!meant.is_empty()).then(|| meant.into_iter().map(|m| format!("{m}{options}")).collect())
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        let (bare, given) = name.split_once(':').unwrap_or((name, ""));
        let unknown = || UsageError::unknown("task", name, self.catalog().into_iter().map(|t| t.name));
        let base = find_base(bare).ok_or_else(unknown)?;
        let member = (base.members)().into_iter().find(|m| m.name == bare).ok_or_else(unknown)?;
        let given = Options::parse(base, given)?;
        let stem = |path: &PathBuf| path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        Ok(Box::new(GridTask {
            name: format!("{bare}{}", given.canonical(base, stem)),
            setting: (base.make)(bare, &given, options)?,
            seed_name: bare.to_owned(),
            metric: member.metric,
            max_new_tokens: member.max_new_tokens,
            options: given,
        }))
    }
}

struct GridTask {
    /// The recorded name, with the non-default options.
    name: String,
    /// The name that seeds hash: it has no depths, so samples do not depend on them.
    seed_name: String,
    metric: Metric,
    max_new_tokens: usize,
    options: Options,
    setting: Box<dyn Setting>,
}

impl GridTask {
    /// The longest example of the sample at `depth` that fits the length.
    fn sized(&self, request: &Request, depth: f64) -> Result<Draft> {
        let depths = self.options.depths.all();
        let one_context = self.setting.one_context();
        let sized_at = if one_context { depths[0] } else { depth };
        let mut scenes = Vec::new();
        let (attempt, fitted) = fit::fill_sized(request, self.setting.units(request.length), |attempt, units| {
            while scenes.len() as u64 <= attempt {
                scenes.push(self.setting.scene(request, scenes.len() as u64)?);
            }
            Ok(scenes[attempt as usize].draft(units, sized_at))
        })?;
        if !one_context {
            return Ok(fitted.draft);
        }
        // All depths get one size, although their questions differ by a few tokens.
        let scene = &mut scenes[attempt as usize];
        let least = self.setting.units(request.length).least;
        for units in (least..=fitted.units).rev() {
            let mut most = 0;
            for depth in depths {
                most = most.max(request.tokens(&scene.draft(units, *depth))?);
            }
            if most <= request.length {
                return Ok(scene.draft(units, depth));
            }
            if units == least {
                return Err(request.cannot_fit(most).into());
            }
        }
        Ok(fitted.draft)
    }
}

impl Task for GridTask {
    fn name(&self) -> &str {
        &self.name
    }

    fn available(&self) -> Option<usize> {
        self.setting.available()
    }

    fn inputs(&self) -> String {
        digest::of(&(&self.name, self.setting.data()))
    }

    fn notes(&self) -> Vec<String> {
        self.setting.notes()
    }

    fn is_sized(&self) -> bool {
        self.options.count.is_none() && self.options.file.is_none()
    }

    fn least_tokens(&self) -> usize {
        // A pair or a line has at least one token.
        self.options.count.unwrap_or(0)
    }

    fn cells(&self) -> usize {
        self.options.depths.count()
    }

    fn context_of(&self, index: usize) -> usize {
        index - index % self.cells()
    }

    fn example(&self, length: usize, index: usize, seed: u64, counter: &dyn PromptCounter) -> Result<Example> {
        let (sample, cell) = (index / self.cells(), index % self.cells());
        let depth = self.options.depths.all()[cell];
        let request = Request {
            task: &self.name,
            seed_name: &self.seed_name,
            length,
            index: sample,
            run_seed: seed,
            seed: example_seed(seed, &self.seed_name, length, sample),
            max_new_tokens: self.max_new_tokens,
            positions: Positions::Varied,
            counter,
        };
        let draft = match (self.is_sized(), self.options.count) {
            (true, _) => self.sized(&request, depth)?,
            (false, count) => self.setting.scene(&request, 0)?.draft(count.unwrap_or_default(), depth),
        };
        Ok(Example {
            task: self.name.clone(),
            length,
            index,
            context: draft.context,
            question: draft.question,
            answer_prefix: draft.answer_prefix,
            references: draft.references,
            all_classes: Vec::new(),
            metric: self.metric,
            also: Vec::new(),
            max_new_tokens: self.max_new_tokens,
            depth: Some(depth),
            source: self.setting.source(),
            rules: PromptRules::default(),
        })
    }
}

#[cfg(test)]
mod tests;
