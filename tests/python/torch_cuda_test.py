# SPDX-License-Identifier: Apache-2.0
"""normjit.torch on GPUs: streams, devices, threads, CUDA graphs, workspaces."""
import threading

from torch_support import FAKE, TestCase, device, functional, loose, main, parameters, reference, skip, torch

from normjit.torch import LayerNorm, layer_norm

LONG = 1 << 20  # columns of rows that several blocks share, which takes a workspace


class StreamsTest(TestCase):
    def test_launches_on_the_current_stream(self):
        x = torch.randn(64, 4096, device=device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            z = x * 2
            y = layer_norm(z, (4096,))  # on any other stream z would not be there yet
        stream.synchronize()
        self.assert_close(y, reference(x * 2, (4096,)))

    def test_each_stream_has_a_workspace(self):
        xs = [torch.randn(4, LONG, device=device) + i for i in range(4)]
        streams = [torch.cuda.Stream() for _ in xs]
        torch.cuda.synchronize()
        ys = [[] for _ in xs]
        for _ in range(10):
            for x, y, stream in zip(xs, ys, streams):
                with torch.cuda.stream(stream):
                    y.append(layer_norm(x, (LONG,)))
        torch.cuda.synchronize()
        for x, found in zip(xs, ys):
            wanted = reference(x, (LONG,))
            for y in found:
                self.assert_close(y, wanted)

    def test_a_stream_from_elsewhere(self):
        stream = torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream)
        x = torch.randn(4, LONG, device=device)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            y = layer_norm(x, (LONG,))
        stream.synchronize()
        self.assert_close(y, reference(x, (LONG,)))


class ThreadsTest(TestCase):
    def run_threads(self, count, work):
        failures = []

        def run(i):
            try:
                work(i)
            except BaseException as error:  # noqa: B902
                failures.append(error)
        threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def test_a_thread_without_a_context(self):
        """Its first CUDA call is ours, and the memory for y is at hand."""
        x, out = torch.randn(8, 256, device=device), []
        layer_norm(x, (256,))
        torch.cuda.synchronize()
        with torch.no_grad():
            self.run_threads(1, lambda i: out.append(layer_norm(x, (256,))))
        torch.cuda.synchronize()
        self.assert_close(out[0], reference(x, (256,)))

    def test_many_threads_on_many_streams(self):
        x = torch.randn(8, 768, device=device)
        wanted = reference(x, (768,))

        def work(i):
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    y = layer_norm(x, (768,))
                torch.cuda.current_stream().synchronize()
                self.assert_close(y, wanted)
        torch.cuda.synchronize()
        self.run_threads(8, work)

    def test_one_stream_of_many_threads(self):
        x = torch.randn(4, LONG, device=device)
        found = [None] * 4

        def work(i):
            for _ in range(10):
                found[i] = layer_norm(x, (LONG,))
        self.run_threads(4, work)
        torch.cuda.synchronize()
        wanted = reference(x, (LONG,))
        for y in found:
            self.assert_close(y, wanted)

    def test_a_backward_has_threads_of_its_own(self):
        norm = LayerNorm(256, device=device, activation="gelu")
        x = torch.randn(8, 256, device=device, requires_grad=True)
        norm(x).sum().backward()
        wide = x.detach().double().requires_grad_()
        reference(wide, (256,), norm.weight, norm.bias, activation="gelu").sum().backward()
        self.assert_close(x.grad, wide.grad, **loose(torch.float32))


class DevicesTest(TestCase):
    def setUp(self):
        super().setUp()
        if torch.cuda.device_count() < 2:
            self.skipTest("one GPU here")

    def test_x_says_where(self):
        other = torch.device("cuda", (device.index + 1) % torch.cuda.device_count())
        for columns in (768, LONG):
            x = torch.randn(4, columns, device=other)
            y = layer_norm(x, (columns,), activation="relu")
            self.assertEqual(y.device, other)
            self.assertEqual(torch.cuda.current_device(), device.index)
            self.assert_close(y, reference(x, (columns,), activation="relu"))

    def test_devices_in_turns_and_backward(self):
        norms = [LayerNorm(768, device=f"cuda:{i}") for i in range(2)]
        for _ in range(3):
            for i, norm in enumerate(norms):
                x = torch.randn(4, 768, device=f"cuda:{i}", requires_grad=True)
                norm(x).square().sum().backward()
                self.assertEqual(x.grad.device.index, i)
                self.assertTrue(x.grad.isfinite().all())

    def test_a_parameter_of_another_device(self):
        weight = torch.ones(768, device="cuda:1")
        with self.assertRaisesRegex(RuntimeError, "Expected all tensors to be on the same device"):
            layer_norm(torch.randn(4, 768, device="cuda:0"), (768,), weight)


class GraphsTest(TestCase):
    def captured(self, function, x):
        """A graph of function(x), and its output."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = function(x)
        return graph, y

    def test_replays_see_new_input(self):
        for shape, columns in (((64, 768), 768), ((4, LONG), LONG), ((6, 64, 33), 33)):
            weight, bias = parameters((columns,))
            x = torch.randn(shape, device=device)
            graph, y = self.captured(lambda x: layer_norm(x, (columns,), weight, bias, activation="gelu"), x)
            for i in range(20):
                x.normal_()
                graph.replay()
                if i % 7 == 0:
                    self.assert_close(y, reference(x, (columns,), weight, bias, activation="gelu"))

    def test_two_graphs_at_once(self):
        """Long rows: each graph has workspaces of its own."""
        xs = [torch.randn(4, LONG, device=device) + i for i in range(2)]
        made = [self.captured(lambda x: layer_norm(layer_norm(x, (LONG,)), (LONG,), eps=0.5), x) for x in xs]
        streams = [torch.cuda.Stream() for _ in xs]
        torch.cuda.synchronize()
        for _ in range(200):
            for (graph, _), stream in zip(made, streams):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        for (_, y), x in zip(made, xs):
            self.assert_close(y, reference(reference(x, (LONG,)), (LONG,), eps=0.5), rtol=1e-5, atol=1e-5)

    def test_branches_of_one_graph(self):
        """Two streams of one capture: their launches may run at once."""
        x = torch.randn(4, LONG, device=device)
        side = torch.cuda.Stream()

        def both(x):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                a = layer_norm(x, (LONG,), eps=0.25)
            b = layer_norm(x, (LONG,), eps=0.5)
            torch.cuda.current_stream().wait_stream(side)
            return a, b
        graph, (a, b) = self.captured(both, x)
        for _ in range(50):
            x.normal_()
            graph.replay()
        torch.cuda.synchronize()
        self.assert_close(a, reference(x, (LONG,), eps=0.25))
        self.assert_close(b, reference(x, (LONG,), eps=0.5))

    def test_a_kernel_that_is_not_ready_leaves_the_capture_valid(self):
        x = torch.randn(8, 96, device=device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            with self.assertRaisesRegex(RuntimeError, "before the capture begins"):
                layer_norm(x, (96,), eps=0.0625 + self.random.random() * 2.0**-10)  # no cache has it
            y = x + 1
        graph.replay()
        self.assert_close(y, x + 1)

    def test_training_in_a_graph(self):
        for activation, after in ((None, lambda y: y), ("gelu", functional.gelu)):
            norm = LayerNorm(768, device=device, activation=activation)
            same = torch.nn.LayerNorm(768, device=device)
            x = torch.randn(4096, 768, device=device, requires_grad=True)
            fast = torch.cuda.make_graphed_callables(norm, (x,))
            for _ in range(3):
                norm.zero_grad()
                same.zero_grad()
                x = torch.randn(4096, 768, device=device, requires_grad=True)
                fast(x).sin().sum().backward()
                other = x.detach().clone().requires_grad_()
                after(same(other)).sin().sum().backward()
                self.assert_close(x.grad, other.grad, **loose(torch.float32))
                for ours, theirs in zip(norm.parameters(), same.parameters()):
                    self.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-2)  # sums of about 60

    def test_a_backward_that_is_not_ready_is_pytorchs(self):
        """The kernel of the forward is there, that of the backward is not: the capture has what PyTorch launches."""
        eps = 0.0625 + self.random.random() * 2.0**-10  # no cache has it
        x, (weight, bias) = torch.randn(8, 96, device=device, requires_grad=True), parameters((96,), requires_grad=True)
        grad = torch.randn(8, 96, device=device)
        layer_norm(x, (96,), weight, bias, eps)
        functional.layer_norm(x, (96,), weight, bias, eps).backward(grad)  # PyTorch's own warm-up
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            found = torch.autograd.grad(layer_norm(x, (96,), weight, bias, eps), (x, weight, bias), grad)
        graph.replay()
        right = torch.autograd.grad(functional.layer_norm(x, (96,), weight, bias, eps), (x, weight, bias), grad)
        for ours, theirs in zip(found, right):
            self.assert_close(ours, theirs, **loose(torch.float32))

    def test_under_compile_with_graphs(self):
        for columns in (768, LONG):
            norm = LayerNorm(columns, device=device, activation="gelu").eval()
            fast = torch.compile(lambda x: norm(x + 1) * 2, fullgraph=True, mode="reduce-overhead")
            with torch.no_grad():
                for _ in range(4):
                    x = torch.randn(16, columns, device=device)
                    torch.compiler.cudagraph_mark_step_begin()
                    self.assert_close(fast(x).clone(), norm(x + 1) * 2, **loose(torch.float32))


class MemoryTest(TestCase):
    def test_calls_leave_nothing_behind(self):
        x, (weight, bias) = torch.randn(8, 768, device=device), parameters((768,))
        long = torch.randn(2, LONG, device=device)

        def calls(count):
            for _ in range(count):
                layer_norm(x, (768,), weight, bias)
                layer_norm(x.t().contiguous().t(), (768,), weight, bias)
                layer_norm(long, (LONG,))
            torch.cuda.synchronize()
            return torch.cuda.memory_allocated(device)
        self.assertEqual(calls(3), calls(200))

    def test_more_than_two_to_the_31_elements(self):
        if torch.cuda.mem_get_info(device)[0] < 24 << 30:
            self.skipTest("less than 24 GB are free")
        x = torch.randn(1 << 12, device=device, dtype=torch.float16).expand(530_000, 1 << 12).contiguous()
        y = layer_norm(x, (1 << 12,))
        wanted = reference(x[:1], (1 << 12,))
        for rows in (y[:1], y[-1:], y[524_287:524_290]):
            self.assert_close(rows, wanted.expand_as(rows))

    def test_out_of_memory_is_called_so(self):
        x = torch.empty(1, device=device).expand(1 << 24, 1 << 20)
        with self.assertRaisesRegex(RuntimeError, "CUDA out of memory"):
            layer_norm(x, (1 << 20,))


if __name__ == "__main__":
    if FAKE:
        skip("these tests are of GPUs")
    main()
