//! The sections of a policy that open what is closed by default. They depend on the role: the floor bounds and does not
//! grant.

use sympozium_api::SympoziumPolicySpec;
use sympozium_api::policy::SandboxPolicy;

use super::allowed::Allowed;
use super::approval::ApprovalBounds;
use super::grants::GrantBounds;
use super::host_access::HostPowers;
use super::isolation::SeccompFilter;
use super::{EffectivePolicy, Role, packs};

impl EffectivePolicy {
    /// Sets the sections that open something, which depend on the role.
    pub(super) fn set_allowances(&mut self, spec: &SympoziumPolicySpec, role: Role, system_namespace: &str) {
        self.set_model_services(spec, role);
        self.set_seccomp_choices(spec, role);
        if let Some(rbac) = &spec.rbac_policy {
            self.grants = match role {
                Role::Named => GrantBounds::from_policy(rbac),
                Role::Floor => GrantBounds::from_floor(rbac),
            };
        }
        let mounts = match &spec.sandbox_policy {
            Some(SandboxPolicy { allow_host_mounts, .. }) => *allow_host_mounts,
            None => role == Role::Floor,
        };
        match &spec.host_access_policy {
            Some(host) => {
                self.host_access = HostPowers::from_policy(host, mounts, system_namespace);
                if role == Role::Floor && host.namespaces.is_none() {
                    self.host_access.namespaces = Allowed::none();
                }
            }
            None => self.host_access.allow_mounts &= mounts,
        }
        if let Some(policy) = &spec.pack_policy {
            self.packs = packs::allowed_packs(policy.allowed_packs.as_deref(), system_namespace);
            self.system_packs = policy.allow_system_packs;
            self.shadowing = policy.allow_shadowing;
        }
        if let Some(approval) = &spec.approval_policy {
            self.approval = ApprovalBounds::from_policy(approval);
        }
    }

    /// A namespace is opened by a list that has it. A floor without a list leaves that to the other policy, unless it
    /// closes the network.
    fn set_model_services(&mut self, spec: &SympoziumPolicySpec, role: Role) {
        let models = spec.model_policy.as_ref();
        let is_listed = models.is_some_and(|models| models.allowed_namespaces.is_some());
        let is_closed = spec.network_policy.as_ref().is_some_and(|network_policy| network_policy.deny_all);
        self.model_services = match role {
            _ if is_listed => self.model_namespaces.clone(),
            Role::Floor if !is_closed => Allowed::All,
            _ => Allowed::none(),
        };
    }

    /// A profile file of the node is opened by a policy that names it. A floor that names none leaves that to the other
    /// policy.
    fn set_seccomp_choices(&mut self, spec: &SympoziumPolicySpec, role: Role) {
        let sandbox = spec.sandbox_policy.as_ref();
        let named = sandbox.and_then(|sandbox| sandbox.seccomp_profile.as_ref());
        self.seccomp_choices = match (named, role) {
            (Some(profile), _) => Allowed::only(SeccompFilter::from_profile(profile)),
            (None, Role::Floor) => Allowed::All,
            (None, Role::Named) => Allowed::none(),
        };
    }
}
