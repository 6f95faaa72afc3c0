//! Images: of sidecars, hooks and the sandbox.

use sympozium_api::text::quote;

use super::violation::{Findings, violation};
use super::{RuleContext, Subject};
use crate::image::Image;
use crate::policy::EffectivePolicy;

/// Checks every image of the run but those of our own parts, which the installation sets.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    for pack in &case.packs {
        if let Some(sidecar) = pack.sidecar() {
            check_image(&pack.subject(), "spec.sidecar.image", sidecar.image.as_str(), Some(case.policy), findings);
        }
    }
    if let Some(sandbox) = case.run.spec.sandbox.as_ref().filter(|sandbox| sandbox.enabled)
        && let Some(image) = &sandbox.image
    {
        check_image(&case.subject, "spec.sandbox.image", image.as_str(), Some(case.policy), findings);
    }
    let hooks = case.run.spec.lifecycle.iter().flat_map(super::hooks::all_hooks);
    for (field, hook) in hooks {
        let field = format!("spec.lifecycle.{field}.image");
        check_image(&case.subject, &field, hook.image.as_str(), Some(case.policy), findings);
    }
}

/// Checks one image: a valid reference, from a registry that the policy allows.
pub fn check_image(
    subject: &Subject,
    field: &str,
    text: &str,
    policy: Option<&EffectivePolicy>,
    findings: &mut Findings,
) {
    let shown = quote(text);
    let image = match Image::parse(text) {
        Ok(image) => image,
        Err(error) => {
            let message = format!("{shown} is not an image reference: {error}");
            let remedy = "write it as `registry/repository:tag`";
            return findings.deny(subject, violation(field, "image-invalid", message, remedy));
        }
    };
    if let Some(policy) = policy
        && !policy.registries.allows(|registry| registry.allows(&image))
    {
        findings.deny(
            subject,
            violation(
                field,
                "image-registry",
                format!(
                    "{shown} comes from `{}/{}`; the policy allows {}",
                    image.host(),
                    image.repository(),
                    policy.registries.quote_members()
                ),
                "use an image of an allowed registry, or add its registry to `imagePolicy.allowedRegistries`",
            ),
        );
    }
    if image.digest().is_none() && matches!(image.tag(), None | Some("latest")) {
        findings.warn(
            subject,
            violation(
                field,
                "image-floating",
                format!("{shown} can mean another image tomorrow"),
                "name a version or, better, a digest",
            ),
        );
    }
}
