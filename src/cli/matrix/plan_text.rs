//! The remaining work on each model, as text and as JSON.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::outlook::{self, LengthOutlook};
use super::prepare::gpu_memory;
use crate::cli::numbers::{duration, megabytes};
use spattn_base::text::size;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::plan::gpu_memory::{GpuNeed, listed};
use spattn_eval::plan::manifest::cpu_name;
use spattn_eval::plan::memory::{DiskOfExample, disk_of_example, host_indexes_of_example, host_kv_of_example};
use spattn_eval::plan::planner::{PlanCell, Planner};
use spattn_eval::run::density_floor::UnmetDensity;
use spattn_eval::run::estimate::{Probe, RunEstimate, estimate};
use spattn_eval::run::run_plan::RemainingWork;
use spattn_model::device::Device;

/// The remaining work on a model.
pub(super) struct PlanSummary {
    pub(super) model: String,
    pub(super) methods: Vec<String>,
    pub(super) protocols: Vec<String>,
    pub(super) seeds: Vec<u64>,
    pub(super) system_prompt: Option<String>,
    /// Task, length and number of examples.
    pub(super) cells: Vec<(String, usize, usize)>,
    pub(super) records: usize,
    pub(super) estimate: RunEstimate,
    /// What the longest prompt takes on disk; `None` if its KV cache is in memory.
    pub(super) disk: Option<DiskOfExample>,
    /// What the longest prompt's KV cache takes of the host's memory below a GPU; `None` if it is not kept there.
    pub(super) host: Option<usize>,
    /// Host memory for indexes that a GPU makes for the host, besides the KV cache.
    pub(super) host_indexes: usize,
    /// What each GPU needs; none on the CPU.
    pub(super) gpus: Vec<GpuNeed>,
    /// What its verdicts could not say.
    pub(super) outlooks: Vec<LengthOutlook>,
    /// The densities that it asks for and cannot meet.
    pub(super) unmet: Vec<UnmetDensity>,
    /// What the estimated times are for.
    pub(super) timed_on: TimedOn,
}

/// What the estimated times of a plan are for.
pub(super) enum TimedOn {
    Processor,
    /// A GPU of this name.
    Gpu(String),
    /// It would run on a GPU that could not be measured, for this reason: the times are the processor's.
    NotMeasured(String),
}

impl TimedOn {
    /// What a user should know about the times; `config` is that of the plan.
    pub(super) fn line(&self, config: &RunConfig) -> String {
        match self {
            Self::Processor => this_machine(config),
            Self::Gpu(name) => {
                let copies = match config.device.copies_per_gpu() {
                    1 => "",
                    _ => ", by one copy of the model on each GPU: what further copies gain is not estimated",
                };
                format!("The times are estimates for {name}, as busy as it is now{copies}.")
            }
            Self::NotMeasured(why) => format!("How long it takes on a GPU is not estimated: {why}."),
        }
    }
}

/// What a user should know about the times of the plans, each sentence once; `config` is that of one of them.
pub(super) fn what_times_are_for(plans: &[PlanSummary], config: &RunConfig) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in plans.iter().map(|plan| plan.timed_on.line(config)) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.join("\n")
}

impl PlanSummary {
    pub(super) fn new(
        planner: &Planner<'_>,
        left: &RemainingWork,
        (probe, timed_on): (&Probe<'_>, TimedOn),
    ) -> Result<Self> {
        let config = planner.config;
        let cell = |c: &PlanCell| (planner.tasks[c.place.task].name().to_owned(), c.place.length, c.examples());
        Ok(Self {
            model: planner.model.id.clone(),
            methods: config.methods.iter().map(|m| m.label()).collect(),
            protocols: config.protocols.iter().map(ToString::to_string).collect(),
            seeds: config.seeds.clone(),
            system_prompt: config.system_prompt.clone(),
            cells: left.plan.cells.iter().map(cell).collect(),
            records: left.records,
            estimate: estimate(planner, &left.plan, probe)?,
            disk: disk_of_example(config, planner.model, left.plan.longest()),
            host: host_kv_of_example(config, planner.model, left.plan.longest()),
            host_indexes: host_indexes_of_example(config, planner.model, left.plan.longest()),
            gpus: gpu_memory(planner.model, config, left.plan.longest()),
            outlooks: Vec::new(),
            unmet: Vec::new(),
            timed_on,
        })
    }
}

/// What the estimates rest on.
pub(in crate::cli) fn this_machine(config: &RunConfig) -> String {
    let cpu = cpu_name().unwrap_or_else(|| "its CPU".to_owned());
    let threads = rayon::current_num_threads();
    let faster = if config.device == Device::Cpu { "" } else { "; a GPU takes less" };
    format!("The times are estimates for this machine: {cpu}, {threads} threads, as busy as it is now{faster}.")
}

pub(super) fn as_json(models: &[PlanSummary]) -> Value {
    let one = |d: &PlanSummary| {
        let cell = |(task, length, examples): &(String, usize, usize)| json!({ "task": task, "length": length, "examples": examples });
        let RunEstimate { prefill, index, steps, bytes } = d.estimate;
        let gpu = |need: &GpuNeed| json!({ "device": need.device(), "bytes": need.bytes, "free_bytes": need.free() });
        json!({
            "model": d.model,
            "methods": d.methods,
            "protocols": d.protocols,
            "seeds": d.seeds,
            "system_prompt": d.system_prompt,
            "cells": d.cells.iter().map(cell).collect::<Vec<_>>(),
            "records": d.records,
            "seconds": d.estimate.seconds(),
            "prefill_s": prefill,
            "index_s": index,
            "steps_s": steps,
            "bytes": bytes,
            "kv_on_host": d.host.map(|bytes| match d.host_indexes {
                0 => json!({ "bytes": bytes }),
                indexes => json!({ "bytes": bytes, "index_bytes": indexes }),
            }),
            "kv_on_disk": d.disk.map(|disk| json!({ "bytes": disk.disk, "bytes_of_pages_in_memory": disk.pages })),
            "verdicts_not_possible": d.outlooks.iter().map(LengthOutlook::json).collect::<Vec<_>>(),
            "densities_not_possible": d.unmet.iter().map(|unmet| json!({
                "methods": unmet.methods,
                "task": unmet.task,
                "length": unmet.length,
                "least": unmet.floor.share(),
            })).collect::<Vec<_>>(),
            "gpus": d.gpus.iter().map(gpu).collect::<Vec<_>>(),
            "estimated_for": match &d.timed_on {
                TimedOn::Gpu(name) => json!({ "gpu": name }),
                TimedOn::Processor | TimedOn::NotMeasured(_) => {
                    json!({ "cpu": cpu_name(), "threads": rayon::current_num_threads() })
                }
            },
        })
    };
    models.iter().map(one).collect()
}

pub(super) fn as_text(models: &[PlanSummary]) -> String {
    let mut text = String::new();
    for d in models {
        let seeds: Vec<String> = d.seeds.iter().map(u64::to_string).collect();
        let _ = writeln!(
            text,
            "{}, {} methods, sparse from {}, seed {}",
            d.model,
            d.methods.len(),
            d.protocols.join(", "),
            seeds.join(", ")
        );
        d.methods.iter().for_each(|method| text += &format!("  {method}\n"));
        if let Some(system) = &d.system_prompt {
            let _ = writeln!(text, "  system prompt: {system:?}");
        }
        // The number counts the examples of one seed; each seed has its own.
        let examples = if d.seeds.len() > 1 { "examples a seed" } else { "examples" };
        let width = examples.len() + 1;
        let _ = writeln!(text, "\n{:<32} {:>8} {examples:>width$}", "task", "length");
        for (task, length, examples) in &d.cells {
            let length = if *length > 0 { length.to_string() } else { "by file".to_owned() };
            let _ = writeln!(text, "{task:<32} {length:>8} {examples:>width$}");
        }
        let RunEstimate { prefill, index, steps, bytes } = d.estimate;
        let [all, prefill, index, steps] = [d.estimate.seconds(), prefill, index, steps].map(duration);
        let time = match d.timed_on {
            TimedOn::NotMeasured(_) => String::new(),
            _ => format!(", in about {all} (prefill {prefill}, indexes {index}, steps {steps})"),
        };
        let _ = writeln!(text, "\n{} records to make{time}, with up to {}", d.records, megabytes(bytes));
        if let Some(DiskOfExample { disk, pages, .. }) = d.disk {
            let _ = writeln!(
                text,
                "KV cache: up to {} on disk, and of these up to {} in memory",
                size(disk as u64),
                size(pages as u64)
            );
        }
        if let Some(bytes) = d.host {
            let _ = writeln!(text, "KV cache: up to {} in host memory, read over the bus", size(bytes as u64));
        }
        if d.host_indexes > 0 {
            let _ = writeln!(text, "Indexes: up to {} in host memory", size(d.host_indexes as u64));
        }
        if !d.gpus.is_empty() {
            let _ = writeln!(text, "memory of each GPU: {}", listed(&d.gpus));
        }
        text.push('\n');
    }
    let mut unmet: Vec<String> = Vec::new();
    for line in models.iter().flat_map(|model| &model.unmet).map(|unmet| format!("note: {}\n", unmet.line())) {
        if !unmet.contains(&line) {
            unmet.push(line);
        }
    }
    text + &unmet.concat() + &outlook::lines(models.iter().flat_map(|model| &model.outlooks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::config::settings::Settings;
    use spattn_model::device::CopiesPerGpu;

    fn summary() -> PlanSummary {
        PlanSummary {
            model: "builtin".to_owned(),
            methods: vec!["full".to_owned(), "topk:k=8".to_owned()],
            protocols: vec!["question".to_owned()],
            seeds: vec![42],
            system_prompt: Some("Be brief.".to_owned()),
            cells: vec![("ruler/vt".to_owned(), 1024, 3), ("jsonl:rows".to_owned(), 0, 2)],
            records: 10,
            estimate: RunEstimate { prefill: 1.0, index: 2.0, steps: 3.0, bytes: 5_000_000 },
            disk: None,
            host: None,
            host_indexes: 0,
            gpus: Vec::new(),
            outlooks: Vec::new(),
            unmet: Vec::new(),
            timed_on: TimedOn::Processor,
        }
    }

    #[test]
    fn a_plan_states_memory_by_tier() {
        assert!(!as_text(&[summary()]).contains("KV cache"));
        assert_eq!(as_json(&[summary()])[0]["kv_on_disk"], Value::Null);
        let beside = PlanSummary { host: Some(84_000_000), host_indexes: 21_000_000, ..summary() };
        let (text, stated) = (as_text(std::slice::from_ref(&beside)), as_json(std::slice::from_ref(&beside)));
        assert!(text.contains("\nIndexes: up to 21.0 MB in host memory\n"), "{text}");
        assert_eq!(stated[0]["kv_on_host"], json!({ "bytes": 84_000_000, "index_bytes": 21_000_000 }));
        let below = PlanSummary { host: Some(84_000_000), ..summary() };
        let text = as_text(std::slice::from_ref(&below));
        assert!(text.contains("\nKV cache: up to 84.0 MB in host memory, read over the bus\n"), "{text}");
        assert_eq!(as_json(&[below])[0]["kv_on_host"], json!({ "bytes": 84_000_000 }));
        let disk = DiskOfExample { disk: 84_000_000, pages: 64_000_000, accounts: 1 };
        let plan = PlanSummary { disk: Some(disk), ..summary() };
        let text = as_text(std::slice::from_ref(&plan));
        assert!(text.contains("\nKV cache: up to 84.0 MB on disk, and of these up to 64.0 MB in memory\n"), "{text}");
        let json = as_json(&[plan]);
        assert_eq!(json[0]["kv_on_disk"], json!({ "bytes": 84_000_000, "bytes_of_pages_in_memory": 64_000_000 }));
    }

    #[test]
    fn a_plan_lists_methods_cells_and_what_they_take() {
        let text = as_text(&[summary()]);
        assert!(text.starts_with("builtin, 2 methods, sparse from question, seed 42\n  full\n  topk:k=8\n"), "{text}");
        assert!(text.contains("  system prompt: \"Be brief.\"\n"), "{text}");
        let fields = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(fields("ruler/vt"), ["ruler/vt", "1024", "3"]);
        assert_eq!(fields("jsonl:rows"), ["jsonl:rows", "by", "file", "2"]);
        assert!(text.contains("10 records to make, in about 6 s"), "{text}");
    }

    #[test]
    fn a_run_on_a_gpu_gets_times_of_that_gpu_or_none() {
        let of = |timed_on: TimedOn| {
            let plan = PlanSummary { timed_on, ..summary() };
            (as_text(std::slice::from_ref(&plan)), as_json(&[plan])[0]["estimated_for"].clone())
        };
        let (text, json) = of(TimedOn::NotMeasured("there is none".to_owned()));
        assert!(text.contains("10 records to make, with up to ") && !text.contains("in about"), "{text}");
        assert!(json.get("gpu").is_none());
        let (text, json) = of(TimedOn::Gpu("NVIDIA H200".to_owned()));
        assert!(text.contains("in about 6 s (prefill"), "{text}");
        assert_eq!(json, json!({ "gpu": "NVIDIA H200" }));
    }

    #[test]
    fn what_times_are_for_names_the_gpu_and_its_copies() {
        // Builds without GPUs refuse the names of these devices.
        let (one, copies) = (Device::cuda(0), Device::EachGpu(CopiesPerGpu::new(4).unwrap()));
        let config = |device: Device| {
            let text = "tasks = ['ruler/vt']\nlengths = [1024]\nmethods = ['full']";
            let config = RunConfig::resolve(Settings::parse(text, "test").unwrap()).unwrap().remove(0);
            RunConfig { device, ..config }
        };
        let gpu = || TimedOn::Gpu("NVIDIA H200".to_owned());
        assert_eq!(gpu().line(&config(one)), "The times are estimates for NVIDIA H200, as busy as it is now.");
        assert!(gpu().line(&config(copies)).contains("what further copies gain is not estimated"));
        let none = TimedOn::NotMeasured("there is none".to_owned());
        assert_eq!(none.line(&config(one)), "How long it takes on a GPU is not estimated: there is none.");
        let plans = [gpu(), none, gpu()].map(|timed_on| PlanSummary { timed_on, ..summary() });
        let once = "The times are estimates for NVIDIA H200, as busy as it is now.\n\
                    How long it takes on a GPU is not estimated: there is none.";
        assert_eq!(what_times_are_for(&plans, &config(one)), once);
    }

    #[test]
    fn examples_are_those_of_a_seed_where_there_are_several() {
        let text = as_text(&[PlanSummary { seeds: vec![1, 2], ..summary() }]);
        assert!(text.contains("seed 1, 2\n") && text.contains("examples a seed"), "{text}");
    }

    #[test]
    fn the_plan_in_json_has_the_sum_of_the_seconds() {
        let json = as_json(&[summary()]);
        assert_eq!((&json[0]["seconds"], &json[0]["bytes"]), (&json!(6.0), &json!(5_000_000)));
        assert_eq!(json[0]["cells"][1], json!({ "task": "jsonl:rows", "length": 0, "examples": 2 }));
    }
}
