//! Flags of tritonserver's rate limiter: `--rate-limit` and `--rate-limit-resource`.

use std::{fmt, str::FromStr};

use clap::{Args, ValueEnum};
use paternoster_batching::ResourceAmount;

/// Whether models wait for resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RateLimit {
    /// rate_limiter of models has no effect
    #[default]
    Off,
    /// Batches hold the resources of their model's rate_limiter, and models get chances by priority
    #[value(name = "execution_count")]
    ExecutionCount,
}

/// A value of `--rate-limit-resource`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceFlag(ResourceAmount);

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Rate limiter")]
#[allow(missing_docs)]
pub struct RateArgs {
    /// Whether batches run only while they hold the resources that their model's rate_limiter names
    #[arg(long = "rate-limit", value_name = "MODE", value_enum, ignore_case = true, default_value_t = RateLimit::Off)]
    pub mode: RateLimit,

    /// Units of a resource on a device (a card's number, or cpu, which 0 means too), on each device, or of a global
    /// resource, for which the device is ignored; may be given several times. By default there are as many as the most
    /// demanding model asks for
    #[arg(long = "rate-limit-resource", value_name = "NAME:COUNT[:DEVICE]")]
    pub resources: Vec<ResourceFlag>,
}

impl RateArgs {
    /// Returns the units of resources; `None` if there is no rate limiter.
    pub fn amounts(&self) -> Option<Vec<ResourceAmount>> {
        let amounts = || self.resources.iter().map(|resource| resource.0.clone()).collect();
        (self.mode == RateLimit::ExecutionCount).then(amounts)
    }

    /// Returns the flags that have no effect, each with the reason.
    pub(super) fn idle(&self) -> impl Iterator<Item = (String, &'static str)> + '_ {
        let resources = self.resources.iter().filter(move |_| self.mode == RateLimit::Off);
        resources.map(|resource| (format!("--rate-limit-resource={resource}"), "--rate-limit is off"))
    }
}

impl fmt::Display for ResourceFlag {
    /// Formats as the flag's value.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResourceAmount { name, count, device } = &self.0;
        write!(formatter, "{name}:{count}")?;
        device.iter().try_for_each(|device| write!(formatter, ":{device}"))
    }
}

impl FromStr for ResourceFlag {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let mut parts = given.split(':');
        let (Some(name), Some(count), device, None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return Err("expected NAME:COUNT or NAME:COUNT:DEVICE".to_owned());
        };
        if name.is_empty() {
            return Err("expected a name before the first colon".to_owned());
        }
        let count = count.parse().map_err(|_| format!("expected a number of units from 0 on, but found '{count}'"))?;
        let is_device = |device: &str| device == "cpu" || device.parse::<u16>().is_ok();
        if let Some(device) = device.filter(|device| !is_device(device)) {
            return Err(format!("expected cpu or the number of a card, but found '{device}'"));
        }
        // Numbers are compared as texts, so they have no zeros in front.
        let device = device.map(|device| device.parse::<u16>().map_or(device.to_owned(), |number| number.to_string()));
        Ok(Self(ResourceAmount { name: name.to_owned(), count, device }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::serve;

    #[test]
    fn resources_have_a_count_and_maybe_a_device() {
        let amounts = |flags: &[&str]| {
            let on = [&["--rate-limit=execution_count"][..], flags].concat();
            serve(&on).rate.amounts().expect("it is on")
        };
        let amount = |name: &str, count, device: Option<&str>| ResourceAmount {
            name: name.to_owned(),
            count,
            device: device.map(str::to_owned),
        };
        let flags =
            ["--rate-limit-resource=R1:10", "--rate-limit-resource", "R2:5:00", "--rate-limit-resource=R2:8:cpu"];
        let expected = [amount("R1", 10, None), amount("R2", 5, Some("0")), amount("R2", 8, Some("cpu"))];
        assert_eq!(amounts(&flags), expected);
        assert_eq!(amounts(&[]), []);
    }

    #[test]
    fn without_the_mode_there_is_no_limiter() {
        assert_eq!(serve(&["--rate-limit-resource=R1:10"]).rate.amounts(), None);
        assert_eq!(serve(&["--rate-limit=OFF"]).rate.amounts(), None, "as in Triton, in upper case too");
        assert_eq!(serve(&["--rate-limit", "Execution_Count"]).rate.amounts(), Some(Vec::new()));
    }

    #[test]
    fn resources_without_the_mode_are_named_as_flags_without_effect() {
        let idle = |mode: &str| {
            let args = serve(&[mode, "--rate-limit-resource=R1:10", "--rate-limit-resource=R2:5:00"]);
            args.rate.idle().map(|(flag, _)| flag).collect::<Vec<_>>()
        };
        assert_eq!(idle("--rate-limit=off"), ["--rate-limit-resource=R1:10", "--rate-limit-resource=R2:5:0"]);
        assert!(idle("--rate-limit=execution_count").is_empty());
    }

    #[test]
    fn a_resource_that_is_not_well_formed_is_refused_with_what_was_expected() {
        let refused = |given: &str| given.parse::<ResourceFlag>().expect_err("it is not well formed");
        for given in ["R1", "R1:1:0:0"] {
            assert_eq!(refused(given), "expected NAME:COUNT or NAME:COUNT:DEVICE", "{given}");
        }
        assert_eq!(refused(":1"), "expected a name before the first colon");
        assert_eq!(refused("R1:-1"), "expected a number of units from 0 on, but found '-1'");
        assert_eq!(refused("R1:1:gpu"), "expected cpu or the number of a card, but found 'gpu'");
    }
}
