//! Run matrices in TOML.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spattn::attention::expand_grid;
use spattn::attention::methods::starts_command;
use spattn::eval::config::run_config::RunConfig;
use spattn::eval::config::settings::Settings;
use spattn_fuzz::read_usage;

fuzz_target!(|text: &str| {
    let Some(settings) = read_usage(Settings::parse(text, "config.toml")) else { return };
    // What a fuzzer writes is no command to run.
    let mut specs = settings.methods.iter().flatten().flat_map(|text| expand_grid(text).unwrap_or_default());
    if specs.any(|spec| starts_command(&spec)) {
        return;
    }
    let quick = Settings::load("quick").expect("a shipped config");
    for settings in [settings.clone(), settings.over(quick)] {
        for config in read_usage(RunConfig::resolve(settings)).unwrap_or_default() {
            assert!(!config.variants().is_empty());
        }
    }
});
