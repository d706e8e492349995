//! The methods that wrappers of the simulated machine forward to it.

/// Methods of `Backend` that the machine in `self.sim` answers.
macro_rules! left_to_the_sim {
    ($($method:ident)*) => {
        $(left_to_the_sim!(@ $method);)*
    };
    (@ inventory) => {
        fn inventory(&self) -> transload::hal::Inventory {
            self.sim.inventory()
        }
    };
    (@ allocate) => {
        fn allocate(
            &self,
            memory: transload::MemoryId,
            spec: &transload::AllocSpec,
        ) -> Result<transload::hal::Buffer, transload::hal::AllocError> {
            self.sim.allocate(memory, spec)
        }
    };
    (@ exchange) => {
        unsafe fn import(
            &self,
            memory: transload::MemoryId,
            external: transload::hal::External,
        ) -> Result<transload::hal::Buffer, transload::hal::ImportError> {
            // SAFETY: the caller keeps the same promise that the machine asks for.
            unsafe { self.sim.import(memory, external) }
        }

        unsafe fn export(
            &self,
            buffer: &transload::hal::Buffer,
            kind: transload::hal::ExternalKind,
        ) -> Result<transload::hal::External, transload::hal::ImportError> {
            // SAFETY: the caller keeps the same promise that the machine asks for.
            unsafe { self.sim.export(buffer, kind) }
        }
    };
    (@ connect) => {
        fn connect(
            &self,
            src: transload::MemoryId,
            dst: transload::MemoryId,
        ) -> Result<transload::hal::Access, transload::hal::ConnectError> {
            self.sim.connect(src, dst)
        }
    };
    (@ submit) => {
        unsafe fn submit(
            &self,
            via: Option<transload::model::LinkId>,
            ops: &[transload::hal::Op<'_>],
            after: &[transload::hal::Fence],
        ) -> Result<transload::hal::Fence, transload::hal::SubmitError> {
            // SAFETY: the caller keeps the same promise that the machine asks for.
            unsafe { self.sim.submit(via, ops, after) }
        }
    };
    (@ attach) => {
        fn attach(&self, sink: std::sync::Arc<dyn transload::hal::CompletionSink>) -> bool {
            self.sim.attach(sink)
        }
    };
    (@ completes_unattended) => {
        fn completes_unattended(&self) -> bool {
            self.sim.completes_unattended()
        }
    };
    (@ pump) => {
        fn pump(&self) {
            self.sim.pump();
        }
    };
    (@ wait) => {
        fn wait(
            &self,
            fence: transload::hal::Fence,
            limit: std::time::Duration,
        ) -> transload::hal::Waited {
            self.sim.wait(fence, limit)
        }
    };
    (@ wait_any) => {
        fn wait_any(
            &self,
            fences: &[transload::hal::Fence],
            limit: std::time::Duration,
        ) -> transload::hal::Waited {
            self.sim.wait_any(fences, limit)
        }
    };
}
